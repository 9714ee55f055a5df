use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

/// The order in which the addresses of a pool are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// From a hashed start in hashed steps. The same key always gives the same order. Different keys rarely collide at
    /// the first address, and rarely again at the next one.
    #[default]
    Spread,
    /// Ascending.
    Lowest,
}

impl Order {
    /// The order of `count` positions (from 0); each of them occurs once.
    ///
    /// `Spread` computes the SipHash-2-4 of `key` with 128 bits of output and an all-zero key. The first 64 bits,
    /// modulo `count`, are the first position. The other 64 bits, modulo `count - 1`, plus one, are the step, which is
    /// increased by one until it has no divisor in common with `count`. This is part of the contract: with any change,
    /// Services would get other addresses when they are created again.
    pub fn walk(self, key: &str, count: u128) -> Walk {
        match self {
            Self::Lowest => Walk { next: 0, step: 1, count, left: count },
            Self::Spread if count <= 1 => Walk { next: 0, step: 1, count, left: count },
            Self::Spread => {
                let mut hasher = SipHasher24::new();
                hasher.write(key.as_bytes());
                let hash = hasher.finish128();
                let mut step = 1 + u128::from(hash.h2) % (count - 1);
                while gcd(step, count) != 1 {
                    // Ends at `count - 1` at the latest, which has no divisor in common with `count`.
                    step += 1;
                }
                Walk { next: u128::from(hash.h1) % count, step, count, left: count }
            }
        }
    }
}

/// An iterator over the positions below a count, each exactly once; see [`Order::walk`].
#[derive(Clone, Debug)]
pub struct Walk {
    next: u128,
    step: u128,
    count: u128,
    left: u128,
}

impl Walk {
    /// Skips this many positions of an ascending walk.
    pub fn skip_ascending(&mut self, positions: u128) {
        self.next = self.next.saturating_add(positions);
        self.left = self.left.saturating_sub(positions);
    }
}

impl Iterator for Walk {
    type Item = u128;

    fn next(&mut self) -> Option<u128> {
        self.left = self.left.checked_sub(1)?;
        let position = self.next;
        // (position + step) mod count, computed without an intermediate result that could overflow.
        let to_wrap = self.count - self.step.min(self.count);
        self.next = if position >= to_wrap { position - to_wrap } else { position + self.step };
        Some(position)
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
