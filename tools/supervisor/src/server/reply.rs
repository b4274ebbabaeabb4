//! What the control socket answers, a line each.

use std::io::Write;
use std::os::unix::net::UnixStream;

use tofu_control::lines::encode;
use tofu_control::protocol::Reply;

/// Writes a reply.
pub(super) fn say(client: &mut UnixStream, reply: &Reply) -> anyhow::Result<()> {
    Ok(client.write_all(&encode(reply)?)?)
}
