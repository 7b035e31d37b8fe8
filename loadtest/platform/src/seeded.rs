//! A small seeded generator, so that a run can be repeated.
//!
//! It holds one 64-bit state (splitmix64). It is not fit for secrets: keys come from the operating system, see
//! [`crate::keys`].

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const ALPHANUMERIC: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// The generator. Equal seeds give equal values in equal order.
#[derive(Clone, Debug)]
pub struct Seeded {
    state: u64,
}

impl Seeded {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Starts one of many independent streams of the same seed, so that work can be split over threads in any way.
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self::new(mix(seed) ^ mix(stream.wrapping_mul(GOLDEN) ^ GOLDEN))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number from 0 up to but without `bound`; 0 when `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        (wide >> 64) as u64
    }

    /// Text of `len` ASCII letters and digits, as the platform's nonces are.
    pub fn text(&mut self, len: usize) -> String {
        (0..len)
            .map(|_| char::from(ALPHANUMERIC[self.below(62) as usize]))
            .collect()
    }

    /// A nonce for AES-256-GCM: 12 ASCII letters and digits, used as they stand.
    pub fn gcm_nonce(&mut self) -> [u8; 12] {
        std::array::from_fn(|_| ALPHANUMERIC[self.below(62) as usize])
    }

    /// Text shaped like a version 5 UUID, as the ids of live notices are.
    pub fn uuid(&mut self) -> String {
        let (a, b) = (self.next_u64(), self.next_u64());
        format!(
            "{:08x}-{:04x}-5{:03x}-{:04x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xFFFF,
            a & 0x0FFF,
            0x8000 | ((b >> 48) & 0x3FFF),
            b & 0xFFFF_FFFF_FFFF
        )
    }
}

/// The finaliser of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_first_values_of_splitmix64_come_out() {
        let mut random = Seeded::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn equal_seeds_agree_and_streams_differ() {
        assert_eq!(Seeded::stream(7, 3).text(32), Seeded::stream(7, 3).text(32));
        assert_ne!(Seeded::stream(7, 3).text(32), Seeded::stream(7, 4).text(32));
        assert_ne!(Seeded::stream(7, 3).text(32), Seeded::stream(8, 3).text(32));
    }

    #[test]
    fn shapes_hold_for_many_values() {
        let mut random = Seeded::new(0);
        assert_eq!(random.below(0), 0);
        for _ in 0..1_000 {
            assert!(random.below(10) < 10);
            assert!(random.gcm_nonce().iter().all(u8::is_ascii_alphanumeric));
            let id = random.uuid();
            let lens: Vec<usize> = id.split('-').map(str::len).collect();
            assert_eq!(lens, [8, 4, 4, 4, 12], "{id}");
            assert!(
                id.split('-')
                    .nth(2)
                    .is_some_and(|part| part.starts_with('5'))
            );
        }
    }
}
