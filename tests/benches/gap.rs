//! The effect of a gap between packets on a congested receiver and on the traffic that passes it:
//! in modelled time, so the host's speed does not matter.

#[allow(unreachable_pub)]
#[path = "../../guest-lib/utofu/tests/congestion/mod.rs"]
mod congestion;

use congestion::congestion;

fn main() {
    println!("gap   all there, us   passing by, us   ratio   cycles without credit");
    let without = congestion(0);
    for gap in [0, 16, 32, 64, 128, 255] {
        let spaced = congestion(gap);
        let us = |ps: u64| ps as f64 / 1e6;
        let ratio = without.short_ps as f64 / spaced.short_ps as f64;
        println!(
            "{gap:>3}{:>16.1}{:>17.2}{ratio:>8.2}{:>24}",
            us(spaced.time_ps),
            us(spaced.short_ps),
            spaced.zero_credit
        );
    }
}
