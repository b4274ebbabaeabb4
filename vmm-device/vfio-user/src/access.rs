//! The access of a client that a thread carries out.

use std::cell::Cell;

use tofu_abi::Coords;

thread_local! {
    static ACCESSED: Cell<Option<Coords>> = const { Cell::new(None) };
}

/// The node whose registers or configuration a client accesses, if this thread is carrying out that
/// access. The client's processor waits for it, unless the client has posted a write.
pub fn accessed_node() -> Option<Coords> {
    ACCESSED.get()
}

/// An access to a node, until it is dropped.
pub(crate) struct Access(());

impl Access {
    pub(crate) fn of(node: Coords) -> Self {
        ACCESSED.set(Some(node));
        Self(())
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        ACCESSED.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_accessed_until_the_access_ends() {
        let node = Coords::default();
        assert_eq!(accessed_node(), None);
        let access = Access::of(node);
        assert_eq!(accessed_node(), Some(node));
        drop(access);
        assert_eq!(accessed_node(), None);
    }
}
