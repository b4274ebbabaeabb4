//! Programs on nodes that run as a job's user.

use tofu_agent::user;
use tofu_agent::wire::{Exec, Program};

/// Returns a program that runs as a job's user, where nodes support that.
pub(crate) fn as_user(user: u32, words: &[&str]) -> Exec {
    let user = [user::WORD.to_owned(), user.to_string()];
    let args = user.into_iter().chain(words.iter().map(|word| (*word).to_owned())).collect();
    Exec { program: Program::Agent, args, env: Vec::new(), stdin: false }
}
