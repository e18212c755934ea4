//! Checks that each parser handles any input correctly, for example that its result does not depend on how the input
//! is cut into blocks. Property tests and fuzz targets call these functions, which panic if a parser fails the check.
pub mod address;
pub mod chunk;
pub mod command;
pub mod data;
pub mod proxy;
pub mod reply;

/// Generator of pseudo-random numbers (SplitMix64; Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    pub fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    /// Returns true with a probability of 1 / `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Cuts bytes into blocks of random length, at most 200 bytes. Most blocks have at most 6 bytes.
    pub fn cut<'a>(&mut self, bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let mut blocks = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let limit = if self.once_in(4) { 200 } else { 6 };
            let (block, after) = rest.split_at(rest.len().min(1 + self.below(limit) as usize));
            blocks.push(block);
            rest = after;
        }
        blocks
    }
}
