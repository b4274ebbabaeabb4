//! The arbitration rules of a crossbar's outputs.

/// The arbitration of an output of a crossbar (*ours*, both: how the chip chooses is not
/// published).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arbiter {
    /// Round robin: first among the crossbar's parts, then among the inputs of a part.
    #[default]
    InTurn,
    /// Frames that go straight on along their axis first, all others in turn. The others may wait
    /// for as long as anything goes straight on.
    StraightFirst,
    /// Frames that came over a link before those that a TNI sends. TNIs may wait for as long as
    /// anything passes through.
    TransitFirst,
}
