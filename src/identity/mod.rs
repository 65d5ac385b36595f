#![forbid(unsafe_code)]
//! Names by content: of token lists and of whole engines.
//!
//! # Invariants
//! Every function is pure; its bytes are the same on every machine.
//!
//! # Limits
//! FNV-1a is not a cryptographic hash: two different inputs can be made to collide. It names what a host holds already, and guards
//! against mistakes, not against an attacker.
//!
//! # Source
//! FNV-1a, 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>

/// Hash of the empty input (S-82).
pub const FNV_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01B3;

/// FNV-1a-64 of `bytes`, going on from `hash` (S-82).
pub fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

/// FNV-1a-64 of token ids as u32 little-endian, going on from `hash`.
pub fn fnv_tokens(hash: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(hash, |hash, &token| fnv_token(hash, token))
}

/// As [`fnv`] over the four bytes of a token. A zero byte only multiplies, so the zero bytes above a small id are one product, and
/// it does not depend on the hash: the chain of dependent products is half as long.
fn fnv_token(hash: u64, token: u32) -> u64 {
    const PRIME_2: u64 = FNV_PRIME.wrapping_mul(FNV_PRIME);
    const PRIME_3: u64 = PRIME_2.wrapping_mul(FNV_PRIME);
    let byte = |shift: u32| u64::from(token >> shift & 0xFF);
    let first = (hash ^ byte(0)).wrapping_mul(FNV_PRIME) ^ byte(8);
    match token {
        0..=0xFFFF => first.wrapping_mul(PRIME_3),
        0x1_0000..=0xFF_FFFF => (first.wrapping_mul(FNV_PRIME) ^ byte(16)).wrapping_mul(PRIME_2),
        _ => {
            let third = first.wrapping_mul(FNV_PRIME) ^ byte(16);
            (third.wrapping_mul(FNV_PRIME) ^ byte(24)).wrapping_mul(FNV_PRIME)
        }
    }
}

/// Digest of a token list (S-81).
pub fn content_digest(tokens: &[u32]) -> [u8; 32] {
    let mut hash = ContentHash::default();
    hash.extend(tokens);
    hash.digest()
}

/// A content digest in the making: token lists that begin alike can share its beginning (S-81).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHash {
    first: u64,
    second: u64,
}

impl Default for ContentHash {
    /// Of no tokens.
    fn default() -> Self {
        Self { first: FNV_BASIS, second: !FNV_BASIS }
    }
}

impl ContentHash {
    /// Appends tokens.
    pub fn extend(&mut self, tokens: &[u32]) {
        for &token in tokens {
            self.first = fnv_token(self.first, token);
            self.second = fnv_token(self.second, token);
        }
    }

    /// The digest of the tokens so far.
    pub fn digest(&self) -> [u8; 32] {
        digest_of_two(self.first, self.second)
    }
}

/// What a state was made by: space, code and weights (S-80).
#[derive(Clone, Copy, Debug)]
pub struct CompatInput<'a> {
    /// Kind of the state space.
    pub kind: u32,
    /// Version tag of the state space.
    pub version_tag: u64,
    /// Identity of the runtime's code.
    pub runtime_id: &'a str,
    /// Version of the runtime's code.
    pub runtime_version: &'a str,
    /// Identity of the weights.
    pub weights_identity: &'a [u8; 32],
    /// Digest of the adapter that the state was computed with; none for the model alone.
    pub adapter: Option<&'a [u8; 32]>,
}

/// Identity of the engines that can exchange state (S-80). An adapter's digest follows the rest of the input, so that its state is
/// not taken for that of the model alone.
pub fn compat_identity(input: &CompatInput<'_>) -> [u8; 32] {
    let from = |hash| {
        let parts: [&[u8]; 8] = [
            &input.kind.to_le_bytes(),
            &input.version_tag.to_le_bytes(),
            input.runtime_id.as_bytes(),
            &[0],
            input.runtime_version.as_bytes(),
            &[0],
            input.weights_identity,
            input.adapter.map_or(&[], |digest| digest),
        ];
        parts.into_iter().fold(hash, fnv)
    };
    let first = from(FNV_BASIS);
    digest_of_two(first, from(first))
}

/// What the bytes of a richer space depend on (S-84).
#[derive(Clone, Copy, Debug)]
pub struct LayoutInput<'a> {
    /// Names the weights.
    pub weights: u64,
    /// Model architecture.
    pub architecture: &'a str,
    /// Layers.
    pub layers: u32,
    /// Width of a token's keys.
    pub kv_dim: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Tokens per page.
    pub page_tokens: u32,
    /// Layout flags; 0 is left out of the input.
    pub flags: u32,
}

/// Version of the recipe of [`layout_tag`].
const LAYOUT_RECIPE: u32 = 2;

/// A version tag for a space whose bytes depend on all of this (S-84).
pub fn layout_tag(input: &LayoutInput<'_>) -> u64 {
    let numbers = [input.layers, input.kv_dim, input.head_dim, input.page_tokens, input.flags];
    let numbers = if input.flags == 0 { numbers.get(..4).unwrap_or_default() } else { &numbers };
    let start = fnv(fnv(FNV_BASIS, &LAYOUT_RECIPE.to_le_bytes()), &input.weights.to_le_bytes());
    fnv_tokens(fnv(start, input.architecture.as_bytes()), numbers)
}

fn digest_of_two(first: u64, second: u64) -> [u8; 32] {
    let mut digest = [0; 32];
    let (low, rest) = digest.split_at_mut(8);
    low.copy_from_slice(&first.to_le_bytes());
    rest[..8].copy_from_slice(&second.to_le_bytes());
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// S-82, S-83.
    #[test]
    fn fnv_gives_the_published_values() {
        let of = |text: &str| fnv(FNV_BASIS, text.as_bytes());
        assert_eq!([of(""), of("a"), of("foobar")], [FNV_BASIS, 0xAF63_DC4C_8601_EC8C, 0x8594_4171_F739_67E8]);
    }

    /// S-82: the short form of a token's four bytes is the long one.
    #[test]
    fn token_hash_is_that_of_its_bytes() {
        for token in [0, 1, 255, 256, 0xFFFF, 0x1_0000, 0x1_2345, 0xFF_FFFF, 0x100_0000, 0x1234_5678, u32::MAX] {
            for hash in [0, FNV_BASIS, !FNV_BASIS, 0x1234_5678_9ABC_DEF0] {
                assert_eq!(fnv_token(hash, token), fnv(hash, &token.to_le_bytes()), "{token:#x}");
                assert_eq!(fnv_tokens(hash, &[token, 7]), fnv(fnv(hash, &token.to_le_bytes()), &7u32.to_le_bytes()));
            }
        }
    }

    /// S-81, S-83.
    #[test]
    fn content_digests_are_those_of_the_vectors() {
        let zeros = "0".repeat(32);
        assert_eq!(hex(&content_digest(&[1, 2, 3])), format!("9503eb81430f1ffdbac346231c6d9d0d{zeros}"));
        assert_eq!(hex(&content_digest(&[])), format!("25232284e49cf2cbdadcdd7b1b630d34{zeros}"));
    }

    /// S-80, S-83, SS-51.
    #[test]
    fn identity_of_the_default_fake_runtime_is_that_of_the_vector() {
        let identity = compat_identity(&CompatInput {
            kind: 1,
            version_tag: 1,
            runtime_id: "fake",
            runtime_version: "1",
            weights_identity: &[0xFA; 32],
            adapter: None,
        });
        assert_eq!(hex(&identity), format!("15d1cd032f91e4ecc57abf2d019aa6db{}", "0".repeat(32)));
    }

    /// S-84, SS-51.
    #[test]
    fn layout_tags_are_those_of_the_vectors() {
        let tag = |weights, flags| {
            let (layers, kv_dim, head_dim, page_tokens) = (28, 1024, 128, 16);
            layout_tag(&LayoutInput { weights, architecture: "qwen3", layers, kv_dim, head_dim, page_tokens, flags })
        };
        let tags = [tag(0x1122_3344_5566_7788, 0), tag(0, 0), tag(0x1122_3344_5566_7788, 1)];
        assert_eq!(tags, [0x311D_A57C_1A4B_B441, 0x0076_E3BB_B2DA_E839, 0x00D1_60D4_4E80_1840]);
    }

    /// S-80: an adapter's state is not the model's own, nor another adapter's.
    #[test]
    fn adapters_have_identities_of_their_own() {
        let of = |adapter| {
            let weights_identity = &[0xFA; 32];
            let (kind, version_tag, runtime_id, runtime_version) = (1, 1, "fake", "1");
            compat_identity(&CompatInput { kind, version_tag, runtime_id, runtime_version, weights_identity, adapter })
        };
        let identities = [of(None), of(Some(&[0; 32])), of(Some(&[1; 32]))];
        assert!(identities[0] != identities[1] && identities[1] != identities[2] && identities[0] != identities[2]);
    }
}
