//! The `tofu` command.
fn main() {}
