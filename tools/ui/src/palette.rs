//! Colours of all pictures: of links and nodes in `tofu topo` and `tofu view`, of commands in
//! `tofu trace`, of loads everywhere.
//!
//! Kinds have the colours of Okabe and Ito, which people with any colour vision can distinguish.
//! Loads have steps of the map viridis, which are also ordered by brightness. `view.css` and the
//! Python package have the same; tests compare them.

/// For links and nodes that are down, and commands that have failed. Links have dashes as well.
pub const DOWN: &str = "#d55e00";
/// For nodes that wait, and commands on their way back.
pub const WAITING: &str = "#e69f00";
/// For nodes that work, and commands that are served.
pub const GOOD: &str = "#009e73";
/// For commands on their way to the target.
pub const THERE: &str = "#56b4e9";

/// The axes X, Y, Z, A, B and C.
pub const AXES: [&str; 6] = ["#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#009e73", "#4d4d4d"];

/// Loads from least to most, on a light background.
pub const LOADS: [&str; 5] = ["#7ad151", "#22a884", "#2a788e", "#414487", "#440154"];
/// The same on a dark one, where the brightest is most.
pub const LOADS_IN_THE_DARK: [&str; 5] = ["#3e6fb0", "#26828e", "#35b779", "#90d743", "#fde725"];

#[cfg(test)]
mod tests {
    use super::*;

    /// The luminance of a colour, from 0 to 1, as WCAG defines it.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).unwrap();
            let value = f64::from(value) / 255.0;
            if value <= 0.04 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    #[test]
    fn loads_are_in_order_of_brightness() {
        let steps = |colours: [&str; 5]| colours.map(luminance);
        assert!(steps(LOADS).is_sorted_by(|one, next| one > next), "{:?}", steps(LOADS));
        let dark = steps(LOADS_IN_THE_DARK);
        assert!(dark.is_sorted_by(|one, next| one < next), "{dark:?}");
    }
}
