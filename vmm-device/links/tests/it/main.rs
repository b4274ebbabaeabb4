//! The two ends of a link, with a wire between them that loses what a test tells it to.

mod loss;
mod told_ahead;
mod world;
