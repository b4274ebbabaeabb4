//! Programs on nodes that run as a job's user.

use tofu_agent::user;
use tofu_agent::wire::Exec;

/// Returns a program that runs as a job's user, where nodes support that.
pub(crate) fn as_user(user: u32, words: &[&str]) -> Exec {
    let user = user.to_string();
    Exec::agent([user::WORD, &user].iter().chain(words).copied())
}
