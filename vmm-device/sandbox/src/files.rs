//! Landlock: which files can be opened.

use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd,
    RestrictSelfAttr, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};

use crate::policy::{Access, Error, Policy};

/// The newest Landlock ABI whose rights are requested; an older kernel restricts those that it
/// knows.
const NEWEST: ABI = ABI::V6;

/// Fails for a path that cannot be opened.
pub(crate) fn check(paths: &[(PathBuf, Access)]) -> Result<(), Error> {
    paths.iter().try_for_each(|(path, _)| {
        std::fs::metadata(path)
            .map(drop)
            .map_err(|source| Error::Path { path: path.clone(), source })
    })
}

/// Restricts this thread and its descendants; other threads too where the kernel can. `scope` is
/// what does not reach other processes.
pub(crate) fn restrict(policy: &Policy, scope: impl Into<BitFlags<Scope>>) -> Result<(), Error> {
    check(&policy.paths)?;
    let fail = |error: landlock::RulesetError| Error::Files(error.to_string());
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|rules| rules.scope(scope))
        .and_then(Ruleset::create)
        .map_err(fail)?;
    if policy.listens {
        // This one stands for all ports that the kernel may choose.
        rules = rules.add_rule(NetPort::new(0, AccessNet::BindTcp)).map_err(fail)?;
    }
    for (path, access) in &policy.paths {
        let opened = PathFd::new(path).map_err(|error| Error::Files(error.to_string()))?;
        let mut rights = rights(*access);
        if !path.is_dir() {
            rights &= AccessFs::from_file(NEWEST);
        }
        rules = rules.add_rule(PathBeneath::new(opened, rights)).map_err(fail)?;
    }
    rules.all_threads(true).map_err(fail)?.restrict_self().map_err(fail)?;
    Ok(())
}

fn rights(access: Access) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read | AccessFs::WriteFile | AccessFs::Truncate;
    match access {
        Access::Read => read,
        Access::Write => write,
        Access::Device => write | AccessFs::IoctlDev,
        Access::Execute => read | AccessFs::Execute,
        Access::Folder => {
            write
                | AccessFs::MakeReg
                | AccessFs::MakeDir
                | AccessFs::MakeSock
                | AccessFs::MakeFifo
                | AccessFs::MakeSym
                | AccessFs::RemoveFile
                | AccessFs::RemoveDir
                | AccessFs::Refer
        }
    }
}
