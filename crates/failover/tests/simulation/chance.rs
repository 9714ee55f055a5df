//! Randomness that can be repeated.

/// A source of randomness that can be repeated from its seed.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(super) fn in_hundred(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
