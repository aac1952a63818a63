//! A bound that may be switched off.

/// A bound, or none. Zero never stands for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit<T> {
    /// At most this many.
    At(T),
    /// Switched off with `"unlimited"`.
    Unlimited,
}

impl<T: Copy> Limit<T> {
    /// The bound, `None` when it is off.
    pub fn get(self) -> Option<T> {
        match self {
            Self::At(bound) => Some(bound),
            Self::Unlimited => None,
        }
    }
}

impl<T: Copy + PartialOrd> Limit<T> {
    /// Whether one more than `held` would still be within the bound.
    pub fn admits_after(self, held: T) -> bool {
        match self {
            Self::At(bound) => held < bound,
            Self::Unlimited => true,
        }
    }
}
