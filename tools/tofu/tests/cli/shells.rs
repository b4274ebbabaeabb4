//! The texts for shells and `man`: completions and manual pages.

use std::fs;
use std::process::Command;

use crate::tofu::Place;

/// The completions of bash after some words, with the printed script.
fn offered(place: &Place, words: &[&str]) -> Vec<String> {
    let script = place.run(&["completions", "bash"]).ok();
    let file = place.path().join("tofu.bash");
    fs::write(&file, script).unwrap();
    let [.., before, last] = words else { panic!("{words:?}") };
    let ask = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={}; _tofu tofu {last} {before}
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        file.display(),
        words.join(" "),
        words.len() - 1
    );
    let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_options_and_values() {
    let place = Place::new();
    assert!(offered(&place, &["tofu", "ex"]).contains(&"exec".to_owned()));
    assert!(offered(&place, &["tofu", "up", "--sh"]).contains(&"--shape".to_owned()));
    let doorbells = offered(&place, &["tofu", "up", "--doorbell", "''"]);
    for mode in ["trapped", "polled", "auto"] {
        assert!(doorbells.contains(&mode.to_owned()), "{doorbells:?}");
    }
    assert!(!offered(&place, &["tofu", "int"]).contains(&"internal".to_owned()));
}

#[test]
fn every_shell_gets_a_script() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(place.run(&["completions", shell]).ok().contains("doorbell"), "{shell}");
    }
    assert!(place.run(&["completions", "dos"]).error().contains("possible values: bash"));
}

#[test]
fn every_command_has_a_manual_page() {
    let place = Place::new();
    let folder = place.path().join("man1");
    place.run(&["man", folder.to_str().unwrap()]).ok();
    let page = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    // The commands that `tofu --help` lists, in groups.
    let help = place.run(&["--help"]).ok();
    let commands =
        help.split("\nMachines:\n").nth(1).unwrap().split("\nOptions:\n").next().unwrap();
    let commands: Vec<_> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty())
        .collect();
    assert!(commands.contains(&"up") && commands.len() > 20, "{commands:?}");
    for command in commands.iter().filter(|command| **command != "help") {
        let page = page(&format!("tofu-{command}.1"));
        assert!(page.contains(".TH") && page.contains(".SH SYNOPSIS"), "{command}: {page}");
    }
    assert!(page("tofu.1").contains("6D mesh/torus"));
    assert!(page("tofu-link-down.1").contains(".TH"));
    assert!(!folder.join("tofu-internal.1").exists());
}
