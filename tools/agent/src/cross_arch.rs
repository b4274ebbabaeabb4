//! Programs for other processors than this node's. The kernel only reports a wrong format for
//! these, and a shell a syntax error.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tofu_arch::Arch;

/// Checks that a program is not for other processors. A file that is not there, or cannot be read,
/// passes: running it will fail.
///
/// # Errors
///
/// Names the processors that it is for, and those of this node.
pub(crate) fn check(command: &Command) -> io::Result<()> {
    let machine = find(command).and_then(|file| machine(&file));
    let (Some(machine), Some(own)) = (machine, Arch::own()) else { return Ok(()) };
    if machine == own.elf_number() {
        return Ok(());
    }
    let what = Arch::of_elf_number(machine).map_or("other processors", Arch::name);
    Err(io::Error::other(format!("it is for {what}, and this node is {own}")))
}

/// Makes this process a program; returns only if that is not possible.
pub(crate) fn exec(command: &mut Command) -> io::Error {
    match check(command) {
        Ok(()) => command.exec(),
        Err(error) => error,
    }
}

/// The file of a program, searched for like execvp(3) does.
fn find(command: &Command) -> Option<PathBuf> {
    let program = Path::new(command.get_program());
    if program.components().count() > 1 {
        return Some(program.into());
    }
    let given = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path);
    let path = given.map(Into::into).or_else(|| env::var_os("PATH"))?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The processors that an ELF program of 64 bits is for.
fn machine(file: &Path) -> Option<u16> {
    let mut head = [0; tofu_arch::ELF_HEAD];
    // Only of regular files, because reading a pipe would block.
    let file = file.is_file().then(|| File::open(file).ok())??;
    file.take(head.len() as u64).read_exact(&mut head).ok()?;
    tofu_arch::elf_number(&head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn programs_for_other_processors_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let elf = |machine: u16| {
            let mut head = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\0\0rest";
            head[18..20].copy_from_slice(&machine.to_le_bytes());
            head
        };
        let check = |name: &str| check(Command::new(name).env("PATH", folder.path()));
        let own = Arch::own().unwrap();
        let other = Arch::ALL.into_iter().find(|arch| *arch != own).unwrap();
        check(&put("own", &elf(own.elf_number()))).unwrap();
        let path = put("foreign", &elf(other.elf_number()));
        for name in [path.as_str(), "foreign"] {
            let error = check(name).unwrap_err().to_string();
            assert!(error.starts_with(&format!("it is for {other}, and this node is ")), "{error}");
        }
        let error = check(&put("risc-v", &elf(243))).unwrap_err().to_string();
        assert!(error.starts_with("it is for other processors, and"), "{error}");
        // A file that is no program passes.
        for (name, bytes) in [("script", &b"#!/bin/sh\necho yes\n"[..]), ("short", b"\x7fELF\x02")]
        {
            check(&put(name, bytes)).unwrap();
        }
        check("nothing").unwrap();
        check(folder.path().to_str().unwrap()).unwrap();
    }
}
