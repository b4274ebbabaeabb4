//! The parts of a link module, each by itself: protocol, reorder logic, reception.

mod link;
mod receive;
mod window;
