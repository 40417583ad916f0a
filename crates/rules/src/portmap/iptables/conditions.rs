//! Further matches of a container's entries, in words of iptables(8).

use cnikit_iptables::IpVersion;
use cnikit_skel::{Error, Result};
use ipnetwork::IpNetwork;

use super::super::mapping::PortMap;

/// Options that iptables-save writes before the protocol, in its order, each with its other names.
const BEFORE: [(&str, &[&str]); 4] = [
    ("-s", &["--source", "--src"]),
    ("-d", &["--destination", "--dst"]),
    ("-i", &["--in-interface"]),
    ("-o", &["--out-interface"]),
];

/// Options of one letter that match and take a value, which may follow in the same word.
const SHORT: [&str; 5] = ["-s", "-d", "-i", "-o", "-m"];

/// Options of iptables, ip6tables and their restore programs that are commands, choose the table, the protocol or the target,
/// set counters, or tell the program itself what to do, as `--modprobe`, which names a program that it starts. `getopt_long`
/// takes each beginning of such a word for the whole.
const NO_MATCHES: [&str; 29] = [
    "--append",
    "--check",
    "--delete",
    "--delete-chain",
    "--exact",
    "--flush",
    "--goto",
    "--help",
    "--insert",
    "--ipv4",
    "--ipv6",
    "--jump",
    "--line-numbers",
    "--list",
    "--list-rules",
    "--modprobe",
    "--new-chain",
    "--numeric",
    "--policy",
    "--protocol",
    "--rename-chain",
    "--replace",
    "--set-counters",
    "--table",
    "--verbose",
    "--version",
    "--wait",
    "--wait-interval",
    "--zero",
];

/// Options of extensions that are the beginning of an option above, with the extensions that have them: `getopt_long` prefers
/// the whole word once `-m` has loaded the extension.
const OF_EXTENSIONS: [(&str, &[&str]); 3] =
    [("--set", &["recent", "connlabel", "set"]), ("--pol", &["policy"]), ("--proto", &["policy"])];

/// The configured conditions for a version of IP.
pub(super) fn of(portmap: &PortMap, version: IpVersion) -> &[String] {
    match version {
        IpVersion::V4 => &portmap.conditions_v4,
        IpVersion::V6 => &portmap.conditions_v6,
    }
}

/// Refuses words that are not matches of iptables.
pub(super) fn check(words: &[String], version: IpVersion) -> Result<()> {
    let key = match version {
        IpVersion::V4 => "conditionsV4",
        IpVersion::V6 => "conditionsV6",
    };
    let refused = |word: &String, why: &str| {
        let hint = "give matches only, each word as one element: [\"!\", \"-i\", \"eth1\"]";
        Err(Error::config(format!("{key}: {word:?} {why}")).hint(hint))
    };
    if let Some(first) = words.first()
        && !first.starts_with(['-', '!'])
    {
        return refused(first, "is not the beginning of a match of iptables");
    }
    let mut extensions = Vec::new();
    let mut previous = "";
    for word in words {
        let named = extension(previous, word);
        if word.is_empty() || word.contains(char::is_control) {
            return refused(word, "cannot be a word of a rule");
        } else if named.is_some_and(|name| name.contains('/')) {
            return refused(word, "is not the name of an extension of iptables");
        } else if is_more_than_a_match(word, &extensions) {
            return refused(
                word,
                "is not a match: portmap itself chooses the command, the table, the chain, the protocol and the target",
            );
        }
        extensions.extend(named);
        previous = word.as_str();
    }
    let one = |value: &&String| value.parse::<IpNetwork>().is_ok_and(|one| one.is_ipv4() == (version == IpVersion::V4));
    match endpoint_values(words).iter().find(|value| !one(value)) {
        Some(value) => {
            let text = format!("{key}: {value:?} is neither an address nor a network of {}", family(version));
            let hint = "iptables makes several rules of a list or a name: give one address or network; for several, use a match such as iprange or set";
            Err(Error::config(text).hint(hint))
        }
        None => Ok(()),
    }
}

fn family(version: IpVersion) -> &'static str {
    match version {
        IpVersion::V4 => "IPv4",
        IpVersion::V6 => "IPv6",
    }
}

/// The values of source and destination options, in any of their forms.
fn endpoint_values(words: &[String]) -> Vec<String> {
    let mut words = words.iter();
    let mut ends = Vec::new();
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value)),
            _ if word.starts_with("-s") || word.starts_with("-d") => {
                let (name, value) = word.split_at(2);
                (name, if value.is_empty() { None } else { Some(value) })
            }
            _ => (word.as_str(), None),
        };
        if ["-s", "-d"].contains(&name) || is_end(name) {
            match value {
                Some(value) => ends.push(value.to_owned()),
                None => ends.extend(words.next().cloned()),
            }
        }
    }
    ends
}

/// Whether a word is a long source or destination option, or a beginning of one, which iptables accepts too.
fn is_end(name: &str) -> bool {
    name.len() > 2 && BEFORE[..2].iter().flat_map(|(_, names)| *names).any(|long| long.starts_with(name))
}

/// The extension that a word names, alone behind `-m` or in one word with it.
fn extension<'a>(previous: &str, word: &'a str) -> Option<&'a str> {
    if previous == "-m" || is_match_option(previous) {
        return Some(word);
    }
    match word.split_once('=') {
        Some((name, value)) if is_match_option(name) => Some(value),
        _ => word.strip_prefix("-m").filter(|name| !name.is_empty()),
    }
}

/// `--match`, or a beginning of it that is none of `--modprobe`.
fn is_match_option(name: &str) -> bool {
    name.len() > "--m".len() && "--match".starts_with(name)
}

/// Whether iptables would read a word as an option that is no match, or as several options at once. Values are not told from
/// options: how many an option takes only its extension knows.
fn is_more_than_a_match(word: &str, extensions: &[&str]) -> bool {
    if !word.starts_with("--") {
        return is_short_and_more(word);
    }
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    let of_an_extension = OF_EXTENSIONS
        .iter()
        .any(|(option, owners)| *option == name && owners.iter().any(|owner| extensions.contains(owner)));
    !of_an_extension && NO_MATCHES.iter().any(|option| option.starts_with(name))
}

/// `-f` takes no value, so further options would follow it in one word; so do `-4` and `-6`. No option begins with another
/// digit, so anything else of that kind is a number.
fn is_short_and_more(word: &str) -> bool {
    let Some(letters) = word.strip_prefix('-') else { return false };
    if word == "-f" || letters.is_empty() || SHORT.iter().any(|short| word.starts_with(short)) {
        return false;
    }
    !letters.starts_with(|first: char| first.is_ascii_digit()) || letters.starts_with(['4', '6'])
}

/// The words in the order of iptables-save, as far as that is known: those that it prints before the protocol, and those behind.
pub(super) fn as_saved(words: &[String]) -> (Vec<String>, Vec<String>) {
    let mut before = vec![Vec::new(); BEFORE.len()];
    let mut behind = Vec::new();
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let negated = word == "!" && rest.peek().is_some_and(|next| known(next).is_some());
        let option = if negated { rest.next().unwrap_or(word) } else { word };
        match known(option) {
            Some(place) => {
                if negated {
                    before[place].push("!".to_owned());
                }
                before[place].push(BEFORE[place].0.to_owned());
                if let Some(value) = rest.next() {
                    before[place].push(network(value));
                }
            }
            None => behind.push(word.clone()),
        }
    }
    (before.concat(), behind)
}

fn known(word: &str) -> Option<usize> {
    BEFORE.iter().position(|(option, names)| *option == word || names.contains(&word))
}

/// Addresses with their prefix, anything else as it is.
fn network(value: &str) -> String {
    match value.parse::<IpNetwork>() {
        Ok(network) => format!("{}/{}", network.network(), network.prefix()),
        Err(_) => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn matches_are_taken() {
        for line in [
            "-s 10.0.0.0/8",
            "! -i eth1 -d 192.0.2.1",
            "-m conntrack --ctstate NEW",
            "-m policy --pol ipsec --dir in",
            "-m recent --set",
            "-m statistic --mode random --probability 0.5",
            "-m set --match-set jumpers src",
            "--source 10.0.0.1 -m comment --comment it's",
            "-ieth0",
            "-m ttl --ttl-gt -1",
            "-s10.0.0.0/8 --destination=10.0.0.1",
            "-s 10.0.0.0/255.0.0.0",
            "-m iprange --src-range 10.0.0.1-10.0.0.9",
            "-m multiport --source-ports 1,2",
            "-f -m recent --set --name seen",
            "--match connlabel --label 1 --set",
            "-mpolicy --pol ipsec --dir in --strict --proto esp",
            "--match=recent ! --set",
            "-m string --algo bm --string ---",
            "-m comment --comment -",
        ] {
            assert_eq!(check(&words(line), IpVersion::V4), Ok(()), "{line}");
        }
        assert_eq!(check(&[], IpVersion::V4), Ok(()));
    }

    #[test]
    fn a_condition_that_is_more_than_a_match_is_refused_by_its_word() {
        for line in [
            "-j ACCEPT",
            "-jACCEPT",
            "--jump ACCEPT",
            "--jum ACCEPT",
            "--j=ACCEPT",
            "-g X",
            "--goto X",
            "-t filter",
            "--tab filter",
            "-A INPUT",
            "-D INPUT",
            "-F",
            "--flush",
            "-p tcp",
            "--proto tcp",
            "--",
            "-s 10.0.0.1 -j DROP",
            "--modprobe=/tmp/x",
            "--modprobe /tmp/x",
            "--mod=/tmp/x",
            "-M/tmp/x",
            "-fM/tmp/x",
            "-f4M/tmp/x",
            "-4M/tmp/x",
            "-64",
            "--set-counters 1 1",
            "-c 1 1",
            // Only of an extension that was named, and named before.
            "--set",
            "--set -m recent",
            "-m recent --set-c 1 1",
            "--pol ipsec",
            "-m recent --proto tcp",
            "-m recent --set --m=/tmp/x",
        ] {
            let text = check(&words(line), IpVersion::V6).unwrap_err().to_string();
            assert!(text.contains("conditionsV6: \"-") && text.contains("is not a match"), "{line}: {text}");
        }
        for word in ["", "-m\nCOMMIT", "-s\u{0}", "ip saddr 10.0.0.1"] {
            assert!(check(&[word.to_owned()], IpVersion::V4).is_err(), "{word:?}");
        }
    }

    #[test]
    fn every_option_that_is_no_match_is_refused_in_each_of_its_forms() {
        for option in NO_MATCHES {
            for end in 2..=option.len() {
                for word in [option[..end].to_owned(), format!("{}=x", &option[..end])] {
                    let checked = check(&words(&format!("-m mark --mark 1 {word}")), IpVersion::V4);
                    assert!(checked.is_err(), "{word}");
                }
            }
        }
        for letter in (b'!'..=b'~').map(char::from) {
            let is_match = "sdiomf".contains(letter);
            assert_eq!(
                check(&[format!("-{letter}")], IpVersion::V4).is_ok(),
                is_match || letter.is_ascii_digit() && !"46".contains(letter),
                "-{letter}"
            );
            let bundled = check(&[format!("-f{letter}x")], IpVersion::V4);
            assert!(bundled.is_err(), "-f{letter}x");
        }
    }

    #[test]
    fn the_name_of_an_extension_is_no_path() {
        for line in ["-m /tmp/x", "-m../x", "--match=../x", "--mat ../x"] {
            let text = check(&words(line), IpVersion::V4).unwrap_err().to_string();
            assert!(text.contains("is not the name of an extension"), "{line}: {text}");
        }
    }

    #[test]
    fn a_condition_that_becomes_several_rules_is_refused() {
        for line in [
            "-s 10.0.0.1,10.0.0.2",
            "! -d 10.0.0.1,10.0.0.2",
            "-s10.0.0.1,10.0.0.2",
            "-s=10.0.0.1",
            "-i eth1 --source=10.0.0.1,10.0.0.2",
            "--dest localhost",
            "--src node.example",
            "-s fd00::1",
        ] {
            let error = check(&words(line), IpVersion::V4).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("conditionsV4: ") && text.contains("neither an address nor a network of IPv4"),
                "{line}: {text}"
            );
            assert!(text.contains("iprange"), "{line}: {text}");
        }
        assert_eq!(check(&words("-s fd00::1"), IpVersion::V6), Ok(()));
    }

    #[test]
    fn words_are_put_where_iptables_save_puts_them() {
        let saved = as_saved(&words("-m mark --mark 0x1 ! --in-interface eth9 --src 10.9.1.1/16 ! -d 10.0.0.1"));
        assert_eq!(saved, (words("-s 10.9.0.0/16 ! -d 10.0.0.1/32 ! -i eth9"), words("-m mark --mark 0x1")));
        assert_eq!(as_saved(&[]), (Vec::new(), Vec::new()));
        assert_eq!(as_saved(&words("-m mark ! --mark 0x1")).1, words("-m mark ! --mark 0x1"));
    }
}
