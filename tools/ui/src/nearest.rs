//! Suggestions for misspelt names.

/// The similarity from which one name is suggested for another, from 0 to 1.
const ALIKE: f64 = 0.75;

/// The name that is most similar to `word`, if any is.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let alike = |name: &'a str| (strsim::jaro_winkler(word, name), name);
    let best = names.into_iter().map(alike).max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(alike, _)| *alike >= ALIKE).map(|(_, name)| name)
}

/// The same as words for the end of an error; empty if none is similar.
pub fn did_you_mean<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, names).map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_seen() {
        let names = ["shape", "torus", "guest", "memory", "gateway"];
        for (word, meant) in
            [("shpae", "shape"), ("gests", "guest"), ("memmory", "memory"), ("gatway", "gateway")]
        {
            assert_eq!(nearest(word, names), Some(meant), "{word}");
        }
        assert_eq!(nearest("colour", names), None);
        assert_eq!(did_you_mean("shpae", names), "; did you mean shape?");
        assert_eq!(did_you_mean("x", names), "");
    }
}
