//! Text from other sources.

/// A guest's text with control characters replaced, so that a guest cannot control the user's
/// terminal. Tabs become spaces.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}
