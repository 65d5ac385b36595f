#![forbid(unsafe_code)]
//! The tokens of a vocabulary: the bytes each stands for, which are special, which end a text.
//!
//! Files seldom name every token that ends a text, so those are also known by the texts that models use for them, as llama.cpp does:
//! a token with such a text ends a text and counts as control, whatever its declared type.
//!
//! # Invariants
//! Every id in `eog`, `bos`, `eos`, `eot` is below the vocabulary's size.

use super::error::TokenizerError;
use super::parts::VocabularyParts;
use super::table::Strings;
use crate::checkpoint::SpecialTokens;

/// What a token is, as a set of bits: a normal token with the text of a control token is both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kind(u8);

impl Kind {
    pub(super) const NORMAL: Self = Self(1);
    pub(super) const UNKNOWN: Self = Self(2);
    pub(super) const CONTROL: Self = Self(4);
    pub(super) const USER_DEFINED: Self = Self(8);
    pub(super) const BYTE: Self = Self(16);
    /// Never rendered, though merges may reach it.
    pub(super) const UNUSED: Self = Self(0);

    fn of_type(code: i32) -> Self {
        match code {
            1 => Self::NORMAL,
            2 => Self::UNKNOWN,
            3 => Self::CONTROL,
            4 => Self::USER_DEFINED,
            6 => Self::BYTE,
            _ => Self::UNUSED,
        }
    }

    /// Whether it is any of these.
    pub(super) fn is(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Left out of decoded text unless special tokens are asked for.
    pub(super) fn is_hidden(self) -> bool {
        self.is(Self::CONTROL.or(Self::UNKNOWN))
    }

    /// Written as it is in the file, and cut out of a text before anything else.
    pub(super) fn is_special(self) -> bool {
        self.is_hidden() || self.is(Self::USER_DEFINED)
    }
}

/// Kinds of all tokens and the ids with a purpose.
#[derive(Debug)]
pub(super) struct Roles {
    pub(super) kinds: Vec<Kind>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eot: Option<u32>,
    pub(super) unk: Option<u32>,
    pub(super) pad: Option<u32>,
    /// Tokens that end a text, ascending.
    pub(super) eog: Vec<u32>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
}

/// A token's purpose as its text tells it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Ends a turn; of several the lowest id is "the" end of turn.
    EndOfTurn,
    EndOfMessage,
    /// Ends a text and is none of the above.
    End,
    /// Always rendered, though declared control.
    Shown,
    FimPrefix,
    FimSuffix,
    FimMiddle,
    FimPad,
    FimRepo,
    FimSeparator,
}

fn purpose(text: &[u8]) -> Option<Purpose> {
    // Nearly every token leaves here.
    if !matches!(text.first(), Some(b'<' | b'[' | b'_' | 0xe2)) {
        return None;
    }
    Some(match text {
        b"<|eot_id|>"
        | b"<|im_end|>"
        | b"<|end|>"
        | b"<end_of_turn>"
        | b"<|endoftext|>"
        | b"<|end_of_text|>"
        | b"<EOT>"
        | b"_<EOT>"
        | b"[EOT]"
        | b"<end_of_utterance>" => Purpose::EndOfTurn,
        text if text == "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>".as_bytes() => Purpose::EndOfTurn,
        b"<|eom_id|>" => Purpose::EndOfMessage,
        b"<|return|>" | b"<|call|>" | b"<|calls|>" | b"<|flush|>" | b"</s>" | b"[EOS]" | b"<eos>" | b"<turn|>"
        | b"<|tool_response>" | b"[e~[" => Purpose::End,
        b"<|channel|>" | b"<|message|>" | b"<|start|>" | b"<|constrain|>" => Purpose::Shown,
        b"<|fim_prefix|>" | b"<fim-prefix>" | b"<fim_prefix>" | b"<PRE>" | b"<|code_prefix|>" | b"<|prefix|>" => {
            Purpose::FimPrefix
        }
        b"<|fim_suffix|>" | b"<fim-suffix>" | b"<fim_suffix>" | b"<SUF>" | b"<|code_suffix|>" | b"<|suffix|>" => {
            Purpose::FimSuffix
        }
        b"<|fim_middle|>" | b"<fim-middle>" | b"<fim_middle>" | b"<MID>" | b"<|code_middle|>" | b"<|middle|>" => {
            Purpose::FimMiddle
        }
        text if text == "\u{2581}<PRE>".as_bytes() => Purpose::FimPrefix,
        text if text == "\u{2581}<SUF>".as_bytes() => Purpose::FimSuffix,
        text if text == "\u{2581}<MID>".as_bytes() => Purpose::FimMiddle,
        text if text == "<\u{ff5c}fim\u{2581}begin\u{ff5c}>".as_bytes() => Purpose::FimPrefix,
        text if text == "<\u{ff5c}fim\u{2581}hole\u{ff5c}>".as_bytes() => Purpose::FimSuffix,
        text if text == "<\u{ff5c}fim\u{2581}end\u{ff5c}>".as_bytes() => Purpose::FimMiddle,
        b"<|fim_pad|>" | b"<fim-pad>" | b"<fim_pad>" | b"<PAD>" | b"[PAD]" => Purpose::FimPad,
        b"<|fim_repo|>" | b"<|repo_name|>" | b"<fim-repo>" | b"<REPO>" | b"<reponame>" => Purpose::FimRepo,
        b"<|file_sep|>" => Purpose::FimSeparator,
        _ => return None,
    })
}

impl Roles {
    /// Reads types and purposes. `special` are the tokens named for a purpose; `default_bos` says whether BOS is added when the file does not say.
    pub(super) fn new(
        parts: &VocabularyParts<'_>,
        special: &SpecialTokens,
        default_bos: bool,
    ) -> Result<Self, TokenizerError> {
        let vocab = parts.tokens.len();
        check(special, vocab)?;
        let mut kinds = match parts.types {
            Some(types) if types.len() < vocab => {
                return Err(TokenizerError::ListTooShort { list: "token types", expected: vocab, got: types.len() });
            }
            Some(types) => types[..vocab].iter().map(|&code| Kind::of_type(code)).collect(),
            None => vec![Kind::NORMAL; vocab],
        };
        let (eog, eot) = purposes(parts, special, &mut kinds);
        let roles = Self {
            kinds,
            bos: special.bos,
            eos: special.eos,
            eot,
            unk: special.unknown,
            pad: special.padding,
            eog,
            add_bos: parts.add_bos.unwrap_or(default_bos),
            add_eos: parts.add_eos.unwrap_or(false),
        };
        if roles.add_bos && roles.bos.is_none() {
            return Err(TokenizerError::SpecialMissing { name: "bos" });
        }
        if roles.add_eos && roles.eos.is_none() {
            return Err(TokenizerError::SpecialMissing { name: "eos" });
        }
        Ok(roles)
    }
}

fn check(special: &SpecialTokens, vocab: usize) -> Result<(), TokenizerError> {
    let named = [
        ("bos", special.bos),
        ("eos", special.eos),
        ("eot", special.eot),
        ("eom", special.eom),
        ("unknown", special.unknown),
        ("padding", special.padding),
    ];
    let ends = special.ends.iter().map(|&id| ("end", Some(id)));
    for (name, id) in named.into_iter().chain(ends) {
        if let Some(id) = id.filter(|&id| id as usize >= vocab) {
            return Err(TokenizerError::SpecialOutOfRange { name, id, vocab });
        }
    }
    Ok(())
}

/// Ends of text (ascending) and the end of turn; corrects `kinds` on the way.
fn purposes(parts: &VocabularyParts<'_>, special: &SpecialTokens, kinds: &mut [Kind]) -> (Vec<u32>, Option<u32>) {
    let (mut eot, mut eom, mut fim) = (special.eot, special.eom, [None; 6]);
    let mut eog = special.ends.clone();
    let (mut shown, mut end, mut answers) = (Vec::new(), None, [false; 4]);
    for (id, text) in (0u32..).zip(&parts.tokens) {
        let Some(purpose) = purpose(text) else { continue };
        // The first token with a purpose takes it, unless the file has named one.
        let slot = match purpose {
            Purpose::EndOfTurn => Some(&mut eot),
            Purpose::EndOfMessage => Some(&mut eom),
            Purpose::FimPad => Some(&mut fim[0]),
            Purpose::FimRepo => Some(&mut fim[1]),
            Purpose::FimSeparator => Some(&mut fim[2]),
            Purpose::FimPrefix => Some(&mut fim[3]),
            Purpose::FimSuffix => Some(&mut fim[4]),
            Purpose::FimMiddle => Some(&mut fim[5]),
            Purpose::End | Purpose::Shown => None,
        };
        let mut control = matches!(purpose, Purpose::EndOfTurn | Purpose::EndOfMessage | Purpose::End);
        if control {
            eog.push(id);
        }
        if let Some(slot) = slot.filter(|slot| slot.is_none()) {
            *slot = Some(id);
            control = true;
        }
        if control {
            kinds[id as usize] = kinds[id as usize].or(Kind::CONTROL);
        }
        match *text {
            b"<|end|>" => end = Some(id),
            b"<|return|>" => answers[0] = true,
            b"<|call|>" | b"<|calls|>" => answers[1] = true,
            b"<|flush|>" => answers[2] = true,
            b"<|tool_response>" => answers[3] = true,
            _ => {}
        }
        if purpose == Purpose::Shown {
            shown.push(id);
        }
    }
    for id in shown {
        kinds[id as usize] = Kind::USER_DEFINED;
    }
    // What fills a gap, names a repository or separates files ends a text; the parts around a gap do not.
    eog.extend([fim[0], fim[1], fim[2], special.eos, eot, eom].into_iter().flatten());
    // Where other tokens end an answer, this one only ends a part of it.
    if let Some(end) = end
        && answers[1]
        && (answers[0] || answers[2])
    {
        eog.retain(|&id| id != end);
        kinds[end as usize] = Kind::USER_DEFINED;
    }
    if answers[3]
        && let Some(at) = parts.tokens.iter().position(|&text| text == b"</s>")
    {
        eog.retain(|&id| id as usize != at);
        kinds[at] = Kind::NORMAL;
    }
    eog.sort_unstable();
    eog.dedup();
    (eog, eot)
}

/// Tokens with their bytes and roles: what both kinds of vocabulary share.
#[derive(Debug)]
pub(super) struct Tokens {
    /// Bytes of each token when special tokens are rendered.
    pub(super) rendered: Strings,
    pub(super) roles: Roles,
}

/// Size of a vocabulary in bytes, when it can be served at all.
pub(super) fn measured(parts: &VocabularyParts<'_>) -> Result<usize, TokenizerError> {
    let tokens = parts.tokens.len();
    let bytes: u64 = parts.tokens.iter().map(|text| text.len() as u64).sum();
    // Offsets are 32 bits, and the largest id must stay free to mean none.
    if tokens == 0 || tokens >= (u32::MAX >> 1) as usize || bytes > u64::from(u32::MAX) {
        return Err(TokenizerError::Size { tokens, bytes });
    }
    Ok(bytes as usize)
}

/// The byte that a byte token `<0xHH>` stands for.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
