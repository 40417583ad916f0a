//! The node's ranges of addresses, which are put into a network list.

use std::path::PathBuf;

use ipnetwork::IpNetwork;

use crate::network_list::read_given;

/// The longest file with ranges.
const LONGEST: u64 = 1 << 12;

/// Where the ranges are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodCidrs {
    /// `--pod-cidr`, or nothing.
    These(Vec<IpNetwork>),
    /// `--pod-cidr-file`: it is read as often as the network list.
    In(PathBuf),
}

impl Default for PodCidrs {
    fn default() -> PodCidrs {
        PodCidrs::These(Vec::new())
    }
}

impl PodCidrs {
    /// The ranges as they are now: at most one of each family.
    pub(crate) fn read(&self) -> Result<Vec<IpNetwork>, String> {
        match self {
            PodCidrs::These(ranges) => Ok(ranges.clone()),
            PodCidrs::In(path) => {
                let flag = format!("--pod-cidr-file {}", path.display());
                let content = read_given(path, LONGEST).map_err(|why| format!("{flag}: {why}"))?;
                parse(&String::from_utf8_lossy(&content), &flag)
            }
        }
    }
}

/// Parses ranges with commas or white space between them; `flag` is what errors begin with.
pub(crate) fn parse(text: &str, flag: &str) -> Result<Vec<IpNetwork>, String> {
    let mut found: Vec<IpNetwork> = Vec::new();
    let words = text.split(|c: char| c == ',' || c.is_ascii_whitespace());
    for one in words.filter(|word| !word.is_empty()) {
        let failed = |why: &str| format!("{flag}: {one:?}: {why}");
        let cidr: IpNetwork = one.parse().map_err(|_| failed("write a range such as 10.244.1.0/24"))?;
        if !one.contains('/') || cidr.ip() != cidr.network() {
            return Err(failed("bits behind the prefix are set, or the prefix is missing"));
        }
        if found.iter().any(|other| other.is_ipv4() == cidr.is_ipv4()) {
            return Err(failed("there are two ranges of one family"));
        }
        found.push(cidr);
    }
    if found.is_empty() {
        return Err(format!("{flag}: there is no range"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_and_of_one_family_each() {
        let both: [IpNetwork; 2] = ["10.1.2.0/24", "fd00:1::/64"].map(|one| one.parse().unwrap());
        for text in ["10.1.2.0/24,fd00:1::/64", "10.1.2.0/24 fd00:1::/64", "\n10.1.2.0/24, \tfd00:1::/64\n"] {
            assert_eq!(parse(text, "--pod-cidr").unwrap(), both, "{text:?}");
        }
        for (text, says) in [
            ("10.1.2.3/24", "--pod-cidr: \"10.1.2.3/24\": bits behind the prefix"),
            ("10.1.2.0", "the prefix is missing"),
            ("10.1.2.0/24,10.1.3.0/24", "\"10.1.3.0/24\": there are two ranges of one family"),
            ("ten", "write a range"),
            (" ,\n", "there is no range"),
        ] {
            let error = parse(text, "--pod-cidr").unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_is_read_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let ranges = PodCidrs::In(dir.path().join("ranges"));
        let error = ranges.read().unwrap_err();
        assert!(error.starts_with("--pod-cidr-file /") && error.contains("No such file"), "{error}");
        for range in ["10.1.2.0/24", "10.1.3.0/24"] {
            std::fs::write(dir.path().join("ranges"), range).unwrap();
            assert_eq!(ranges.read().unwrap(), [range.parse::<IpNetwork>().unwrap()]);
        }
        std::fs::write(dir.path().join("ranges"), vec![b' '; 1 << 13]).unwrap();
        assert!(ranges.read().unwrap_err().contains("at most 4096 bytes"));
    }
}
