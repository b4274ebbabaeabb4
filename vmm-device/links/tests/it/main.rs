//! The two ends of a link, with a wire between them that loses the frames that a test selects.

mod loss;
mod sender;
mod world;
