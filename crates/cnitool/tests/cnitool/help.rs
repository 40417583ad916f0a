//! The help of every command.

use crate::bench::Bench;

/// The commands of a help text.
fn commands(help: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty()) {
        names.extend(line.split_whitespace().next().map(str::to_owned));
    }
    names.retain(|name| name != "help");
    names
}

#[test]
fn the_help_of_each_command_is_one_screen_with_an_example() {
    let bench = Bench::new();
    let mut all = vec![String::new()];
    let mut tried = 0;
    while let Some(command) = all.pop() {
        let (help, _) = bench.says(0, &format!("{command} -h"));
        all.extend(commands(&help).iter().map(|below| format!("{command} {below}")));
        assert!(help.lines().count() <= 48, "{command} -h has {} lines", help.lines().count());
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{command} -h: {line}");
        }
        let (_, example) = help.split_once("\nExample").unwrap_or_else(|| panic!("{command} -h has no example"));
        let example = example.lines().nth(1).unwrap();
        assert!(example.starts_with("  cnitool"), "{command} -h: {example}");
        tried += 1;
    }
    assert!(tried > 25, "{tried} commands");
}

/// The options that the help of a command shows.
#[test]
fn a_command_shows_the_common_options_that_have_an_effect() {
    let bench = Bench::new();
    let common = ["--ifname", "--json", "--color", "--conf-dir", "--plugin-path", "--cache-dir"];
    for (command, shown) in [
        ("", &common[..]),
        ("add", &["--ifname", "--json", "--conf-dir", "--plugin-path", "--cache-dir"]),
        ("list", &["--json", "--color", "--cache-dir"]),
        ("ipam usage", &["--json", "--color", "--conf-dir", "--cache-dir"]),
        ("netns add", &["--json"]),
        ("schema", &[]),
    ] {
        let (help, _) = bench.says(0, &format!("{command} -h"));
        let found: Vec<&str> = common.into_iter().filter(|option| help.contains(option)).collect();
        assert_eq!(found, shown, "{command} -h");
    }
    // Every command accepts them nevertheless, before it and after it.
    for arguments in ["--ifname eth1 schema dummy", "schema dummy --cache-dir /x", "netns list --plugin-path /x"] {
        bench.says(0, arguments);
    }
}
