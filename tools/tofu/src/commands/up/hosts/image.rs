//! The image of Linux nodes, which goes to the hosts that have not got it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;
use sha2::{Digest, Sha256};
use tofu_image::{Cache, Manifest, hex};
use tofu_linux_nodes::boot_files;
use tofu_spec::plan::Plan;

/// The user's cache, as a shell has it.
const CACHE: &str = "${TOFU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tofu}";

/// An image on this host.
pub(super) struct Image {
    name: String,
    folder: PathBuf,
    /// Its files, with the manifest.
    files: Vec<String>,
    /// The hash of the manifest, which has those of all files.
    hash: String,
    /// Bytes of all files.
    size: u64,
    /// True if the user has named it. A host that has another one of a default image's name keeps
    /// that, and renews it by itself.
    named: bool,
}

impl Image {
    /// The images that nodes boot, as far as this host has them: the one that the user has named,
    /// or the default ones. Others are made by each host.
    ///
    /// # Errors
    ///
    /// If one is damaged.
    pub(super) fn of(plan: &Plan) -> anyhow::Result<Vec<Self>> {
        if plan.linux().next().is_none() {
            return Ok(Vec::new());
        }
        if let Some(name) = &plan.on_linux.image {
            return Ok(Self::find(name.as_str(), true)?.into_iter().collect());
        }
        let mut images = Vec::new();
        for arch in plan.archs() {
            let name = boot_files::present_default(plan, arch)?;
            images.extend(name.map(|name| Self::find(&name, false)).transpose()?.flatten());
        }
        Ok(images)
    }

    fn find(name: &str, named: bool) -> anyhow::Result<Option<Self>> {
        let name = name.to_owned();
        let Some(image) = Cache::from_env()?.find(&name)? else { return Ok(None) };
        let folder = image.initrd.parent().context("an image without a folder")?.to_owned();
        let manifest = folder.join(Manifest::FILE);
        let text = tofu_input::read(&manifest, tofu_input::DESCRIPTION)
            .with_context(|| format!("cannot read {}", manifest.display()))?;
        let hash = hex(&Sha256::digest(text));
        let others = image.manifest.files.keys().cloned();
        let files = [Manifest::FILE.to_owned()].into_iter().chain(others).collect();
        let size = image.manifest.size();
        Ok(Some(Self { name, folder, files, hash, size, named }))
    }

    /// The name of the copied item.
    pub(super) fn words(&self) -> String {
        format!("the image {}, {} MiB", self.name, self.size >> 20)
    }

    /// A script that prints whether a host has the same image, or another one in its place.
    pub(super) fn looked_for(&self) -> String {
        let Self { name, hash, .. } = self;
        let is_there = if self.named {
            format!("test \"$(sha256sum \"$m\" 2>/dev/null | cut -c 1-64)\" = {hash}")
        } else {
            "test -e \"$m\"".to_owned()
        };
        let file = Manifest::FILE;
        format!("m=\"{CACHE}/images/{name}/{file}\"; {is_there} && echo there || echo missing")
    }

    /// A script that reads the image from its standard input and installs it atomically.
    pub(super) fn unpacked(&self) -> String {
        let Self { name, .. } = self;
        format!(
            "set -eu; umask 077; d=\"{CACHE}/images\"; new=\"$d/.sent-{name}-$$\"; \
             mkdir -p \"$new\"; trap 'rm -rf \"$new\"' EXIT; tar -x -f - -C \"$new\"; \
             rm -rf \"$d/{name}\"; mv \"$new\" \"$d/{name}\""
        )
    }

    /// Writes what that takes.
    pub(super) fn pack(&self, to: &mut impl Write) -> io::Result<()> {
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&self.folder).args(["-c", "-f", "-", "--"]).args(&self.files);
        let mut tar = tar.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let copied = tar.stdout.take().map_or(Ok(0), |mut out| io::copy(&mut out, to));
        // Without a reader, tar ends by itself.
        let ended = tar.wait()?;
        copied?;
        match ended.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("tar: {ended}"))),
        }
    }
}
