//! Stand-ins for scripts and tools of the site that jobs call. Most change nothing, so that a
//! script runs on. They come last in a job's `PATH`: a tool that this host has is used.

/// Says that it does nothing.
const NOTHING: &str = "#!/bin/sh\necho \"${0##*/} $*: ignored\" >&2\n";

/// Runs the program after its options. Options that match a shell pattern have a value.
const fn wrapper(valued: &'static str) -> Stand {
    Stand::Wrapper { valued }
}

/// Compiles with the SDK, which it writes into the spool if it is not there, or is older than the
/// command. Several may be called at the same time.
const COMPILER: &str = "#!/bin/sh\n\
    spool=$(cd \"$(dirname \"$0\")/..\" && pwd) || exit\n\
    tofu=$spool/bin/tofu sdk=$spool/sdk name=${0##*/}\n\
    if ! [ \"$sdk/written\" -nt \"$tofu\" ]; then\n\
    \x20   exec 9> \"$spool/sdk.lock\" || exit\n\
    \x20   ! command -v flock > /dev/null || flock 9\n\
    \x20   [ \"$sdk/written\" -nt \"$tofu\" ] || \"$tofu\" sdk \"$sdk\" > /dev/null || exit\n\
    \x20   : > \"$sdk/written\"\n\
    \x20   exec 9>&-\n\
    fi\n\
    exec \"$sdk/bin/$name\" \"$@\"\n";

/// Runs a command of a shell on a node of the job, all of which are this host here.
const REMOTE: &str = "#!/bin/sh\n\
    while :; do\n\
    \x20   case $1 in\n\
    \x20   -l) shift; [ $# = 0 ] || shift ;;\n\
    \x20   -*) shift ;;\n\
    \x20   *) break ;;\n\
    \x20   esac\n\
    done\n\
    [ $# -gt 1 ] || { echo \"${0##*/}: a node and a command must follow\" >&2; exit 1; }\n\
    shift\n\
    exec sh -c \"$*\"\n";

/// The text of a substitute for a tool.
#[derive(Clone, Copy, Debug)]
enum Stand {
    /// A file that scripts read.
    Empty,
    Nothing,
    Compiler,
    Remote,
    Wrapper {
        valued: &'static str,
    },
}

const PROFILER: Stand = wrapper("-[dthpmlwLiIHPSo]");

const ALL: [(&str, Stand); 32] = [
    ("_CNEnv_base", Stand::Empty),
    ("Env_base", Stand::Empty),
    ("module", Stand::Nothing),
    ("spack", Stand::Nothing),
    ("llio_transfer", Stand::Nothing),
    ("llio_transferd", Stand::Nothing),
    ("dir_transfer", Stand::Nothing),
    ("lfs", Stand::Nothing),
    ("xospastop", Stand::Nothing),
    ("xospastart", Stand::Nothing),
    ("fcc", Stand::Compiler),
    ("fccpx", Stand::Compiler),
    ("FCC", Stand::Compiler),
    ("FCCpx", Stand::Compiler),
    ("mpifcc", Stand::Compiler),
    ("mpifccpx", Stand::Compiler),
    ("mpiFCC", Stand::Compiler),
    ("mpiFCCpx", Stand::Compiler),
    ("frt", Stand::Compiler),
    ("frtpx", Stand::Compiler),
    ("mpifrt", Stand::Compiler),
    ("mpifrtpx", Stand::Compiler),
    ("mpiclang", Stand::Compiler),
    ("mpiclang++", Stand::Compiler),
    ("pjrsh", Stand::Remote),
    ("fipppx", Stand::Nothing),
    ("fapppx", Stand::Nothing),
    ("lpgparm", wrapper("-[dsthpmlw]")),
    ("fipp", PROFILER),
    ("fapp", PROFILER),
    ("fjdbg", PROFILER),
    ("numactl", wrapper("-[CNmip]|--physcpubind|--cpunodebind|--membind|--interleave|--preferred")),
];

/// Returns the names and texts of all.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, String)> {
    ALL.into_iter().map(|(name, stand)| (name, text(stand)))
}

/// Returns the names and texts of those that run a program.
pub(crate) fn wrappers() -> impl Iterator<Item = (String, String)> {
    let wrappers = ALL.into_iter().filter(|(_, stand)| matches!(stand, Stand::Wrapper { .. }));
    wrappers.map(|(name, stand)| (name.to_owned(), text(stand)))
}

/// Returns the program that a command line runs through such tools, with its arguments; the whole
/// line if there is none.
pub(crate) fn inside(words: &[String]) -> &[String] {
    let Some((tool, mut rest)) = words.split_first() else { return words };
    let found = ALL.iter().find(|(name, _)| name == tool);
    let Some((_, Stand::Wrapper { valued })) = found else { return words };
    while let Some((word, after)) = rest.split_first().filter(|(word, _)| word.starts_with('-')) {
        rest = after;
        match word.as_str() {
            "--" => break,
            word if takes_value(valued, word) => rest = rest.get(1..).unwrap_or_default(),
            _ => {}
        }
    }
    if rest.is_empty() { words } else { inside(rest) }
}

/// Returns whether an option has a value as the next word, by a pattern of the shell: texts, or a
/// dash and letters in brackets, with bars between them.
fn takes_value(valued: &str, option: &str) -> bool {
    valued.split('|').any(|form| match form.strip_prefix("-[") {
        Some(letters) => {
            let letter = option.strip_prefix('-').filter(|letter| letter.len() == 1);
            letter.is_some_and(|letter| letters.trim_end_matches(']').contains(letter))
        }
        None => form == option,
    })
}

fn text(stand: Stand) -> String {
    match stand {
        Stand::Empty => String::new(),
        Stand::Nothing => NOTHING.to_owned(),
        Stand::Compiler => COMPILER.to_owned(),
        Stand::Remote => REMOTE.to_owned(),
        Stand::Wrapper { valued } => format!(
            "#!/bin/sh\n\
             name=${{0##*/}}\n\
             while [ $# -gt 0 ]; do\n\
             \x20   case $1 in\n\
             \x20   --) shift; break ;;\n\
             \x20   {valued}) shift; [ $# = 0 ] || shift ;;\n\
             \x20   -*) shift ;;\n\
             \x20   *) break ;;\n\
             \x20   esac\n\
             done\n\
             [ $# = 0 ] && exec echo \"$name: ignored\" >&2\n\
             echo \"$name: ignored; $1 runs without it\" >&2\n\
             exec \"$@\"\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn wrappers_run_what_they_wrap() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in all() {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for (words, expected) in [
            ("numactl -C 12-23 -m 4 echo -n a", "a"),
            ("numactl --cpunodebind=4 --membind 4 -l echo a b", "a b\n"),
            ("numactl --hardware", ""),
            ("numactl -m", ""),
            ("fapp -C -d ./prof -Hevent=pa1 echo c", "c\n"),
            ("fipp -C -d ./prof -I call,cpupa -i 10 -Srange echo c", "c\n"),
            ("fapp -A -d ./prof -Icpupa,mpi -tcsv -o pa1.csv", ""),
            ("lpgparm -s 32MB -- echo d", "d\n"),
            ("module load lang/tcsds-1.2.38", ""),
            ("spack load /abc", ""),
        ] {
            let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
            let program = folder.path().join(&words[0]);
            let output = Command::new(program).args(&words[1..]).output().unwrap();
            // Nodes get the program alone.
            let inner = inside(&words);
            let wraps = inner.len() < words.len();
            assert_eq!((wraps, wraps), (!expected.is_empty(), inner[0] == "echo"), "{words:?}");
            assert!(output.status.success());
            assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
            assert!(String::from_utf8(output.stderr).unwrap().contains("ignored"));
        }
    }

    #[test]
    fn remote_commands_run_in_a_shell() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pjrsh");
        fs::write(&path, REMOTE).unwrap();
        let run = |words: &[&str]| {
            let output = Command::new("/bin/sh").arg(&path).args(words).output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        assert_eq!(run(&["-n", "-l", "me", "node1", "echo a; exit", "3"]), (Some(3), "a\n".into()));
        for few in [&["node1"][..], &["-n"], &[], &["-l"]] {
            assert_eq!(run(few), (Some(1), String::new()), "{few:?}");
        }
    }
}
