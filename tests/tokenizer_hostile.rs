//! Vocabularies that are wrong, one way each, and texts that are meant to hurt: typed errors and bounded time, no panic.

#[allow(dead_code, reason = "not every test draws in every way")]
#[path = "common/random.rs"]
mod random;

use std::time::{Duration, Instant};

use ictus::checkpoint::SpecialTokens;
use ictus::tokenizer::{
    DecodeOptions, EncodeOptions, TokenStream, Tokenizer, TokenizerError, UnknownToken, VocabularyParts,
};
use random::Random;

/// The characters that files write for bytes, by byte.
fn alphabet() -> Vec<String> {
    let mut next = 0x100;
    let letter = |byte: u32| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from_u32(byte).unwrap().to_string(),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap().to_string()
        }
    };
    (0..256).map(letter).collect()
}

/// A vocabulary as a file would have it, owned.
struct File {
    model: &'static str,
    pre: Option<&'static str>,
    tokens: Vec<Vec<u8>>,
    scores: Option<Vec<f32>>,
    types: Option<Vec<i32>>,
    merges: Option<Vec<Vec<u8>>>,
    special: SpecialTokens,
    add_bos: Option<bool>,
}

impl File {
    fn bytes_and_pairs() -> Self {
        let merges = ["a b", "ab c", "\u{120} a", "\u{120}a b", "d e"];
        let mut tokens = alphabet();
        tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
        tokens.extend(["<|s|>".to_owned(), "<|e|>".to_owned()]);
        let mut types = vec![1; tokens.len()];
        types[261] = 3;
        types[262] = 3;
        Self {
            model: "gpt2",
            pre: Some("gpt-2"),
            tokens: tokens.into_iter().map(String::into_bytes).collect(),
            scores: None,
            types: Some(types),
            merges: Some(merges.iter().map(|merge| merge.as_bytes().to_vec()).collect()),
            special: SpecialTokens { bos: Some(261), eos: Some(262), ..SpecialTokens::default() },
            add_bos: None,
        }
    }

    fn scored() -> Self {
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
        tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
        tokens.extend(["\u{2581}", "a", "b", "ab", "\u{2581}a", "\u{2581}ab", "abab"].map(str::to_owned));
        let scores = (0..tokens.len()).map(|id| if id < 262 { 0.0 } else { -(id as f32) }).collect();
        let types = (0..tokens.len()).map(|id| [2, 3, 3].get(id).copied().unwrap_or(if id < 259 { 6 } else { 1 }));
        Self {
            model: "llama",
            pre: None,
            types: Some(types.collect()),
            tokens: tokens.into_iter().map(String::into_bytes).collect(),
            scores: Some(scores),
            merges: None,
            special: SpecialTokens::default(),
            add_bos: None,
        }
    }

    fn build(&self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_parts(&VocabularyParts {
            model: self.model,
            pre: self.pre,
            tokens: self.tokens.iter().map(Vec::as_slice).collect(),
            scores: self.scores.as_deref(),
            types: self.types.as_deref(),
            merges: self.merges.as_ref().map(|merges| merges.iter().map(Vec::as_slice).collect()),
            special: self.special.clone(),
            add_bos: self.add_bos,
            ..VocabularyParts::default()
        })
    }
}

/// Builds the vocabulary after one change, twice, and returns the error.
fn refusal(mut file: File, change: impl Fn(&mut File)) -> TokenizerError {
    assert!(file.build().is_ok(), "right before the change");
    change(&mut file);
    let (first, second) = (file.build(), file.build());
    let error = second.expect_err("refused");
    assert_eq!(first.expect_err("refused").to_string(), error.to_string());
    error
}

macro_rules! assert_refused {
    ($file:expr, $change:expr, $error:pat) => {
        let error = refusal($file, $change);
        assert!(matches!(error, $error), "{error:?}");
    };
}

#[test]
fn wrong_byte_level_vocabularies_are_refused() {
    use TokenizerError as E;
    let file = File::bytes_and_pairs;
    assert_refused!(file(), |f| f.model = "rwkv", E::UnknownModel { .. });
    assert_refused!(file(), |f| f.model = "", E::NoVocabulary);
    assert_refused!(file(), |f| f.pre = Some("gpt-3"), E::UnknownPreTokenizer { name: Some(_) });
    assert_refused!(file(), |f| f.pre = None, E::UnknownPreTokenizer { name: None });
    assert_refused!(file(), |f| f.tokens.clear(), E::Size { tokens: 0, .. });
    assert_refused!(file(), |f| f.tokens[5].clear(), E::EmptyToken { id: 5 });
    assert_refused!(file(), |f| f.tokens[99] = b"a".to_vec(), E::DuplicateToken { first: 97, second: 99 });
    let foreign = |f: &mut File| {
        f.tokens[261] = "\u{ff5c}".into();
        f.tokens[262] = "\u{ff5c}".into();
    };
    assert_refused!(file(), foreign, E::DuplicateToken { first: 261, second: 262 });
    assert_refused!(file(), |f| f.tokens[7] = vec![0xff, 0xfe], E::NotUtf8 { id: 7 });
    assert_refused!(file(), |f| f.types = Some(vec![1; 4]), E::ListTooShort { got: 4, expected: 263, .. });
    assert_refused!(file(), |f| f.types.as_mut().unwrap()[97] = 6, E::BadByteToken { id: 97 });
    assert_refused!(file(), |f| f.merges = None, E::ListMissing { list: "merges" });
    for merge in ["", " ", "a", "ab", " a", "a ", "x y z", "a b c", "q q", "a zz", "zz a", "a \u{ff5c}", "\u{ff5c} a"] {
        assert_refused!(file(), |f| f.merges.as_mut().unwrap()[3] = merge.into(), E::BadMerge { index: 3 });
    }
    assert_refused!(file(), |f| f.merges.as_mut().unwrap()[0] = vec![0xc3, b' ', 0xa9], E::BadMerge { index: 0 });
    assert_refused!(file(), |f| f.special.eos = Some(263), E::SpecialOutOfRange { name: "eos", id: 263, vocab: 263 });
    assert_refused!(file(), |f| f.special.ends = vec![1, u32::MAX], E::SpecialOutOfRange { id: u32::MAX, .. });
    let nameless = |f: &mut File| (f.special.bos, f.add_bos) = (None, Some(true));
    assert_refused!(file(), nameless, E::SpecialMissing { name: "bos" });
    let no_bytes = |f: &mut File| {
        f.tokens = vec![b"abc".to_vec(), b"abd".to_vec()];
        f.types = None;
        f.merges = Some(vec![]);
        f.special = SpecialTokens::default();
    };
    assert_refused!(file(), no_bytes, E::NoByteToken { .. });
}

#[test]
fn wrong_scored_vocabularies_are_refused() {
    use TokenizerError as E;
    let file = File::scored;
    assert_refused!(file(), |f| f.scores = None, E::ListMissing { list: "scores" });
    assert_refused!(file(), |f| f.scores = Some(vec![0.0; 7]), E::ListTooShort { got: 7, .. });
    assert_refused!(file(), |f| f.scores.as_mut().unwrap()[9] = f32::NAN, E::BadScore { id: 9 });
    assert_refused!(file(), |f| f.tokens[260].clear(), E::EmptyToken { id: 260 });
    assert_refused!(file(), |f| f.tokens[261] = b"a".to_vec(), E::DuplicateToken { first: 260, second: 261 });
    assert_refused!(file(), |f| f.tokens[260] = vec![0x80], E::NotUtf8 { id: 260 });
    assert_refused!(file(), |f| f.tokens[3 + 0x41] = b"<0x4>".to_vec(), E::BadByteToken { id: 68 });
    // A byte may stand for itself instead, as some files have it; only then is there none.
    let gone = |f: &mut File| (f.tokens[3 + 0xc3], f.types.as_mut().unwrap()[3 + 0xc3]) = (b"other".to_vec(), 1);
    assert_refused!(file(), gone, E::NoByteToken { byte: 0xc3 });
    let mut itself = file();
    (itself.tokens[3 + 0x41], itself.types.as_mut().unwrap()[3 + 0x41]) = (b"A".to_vec(), 1);
    assert_eq!(itself.build().unwrap().encode("A", EncodeOptions::default()).unwrap(), [259, 3 + 0x41]);
}

#[test]
fn words_are_merged_by_rank_and_score() {
    let bytes = File::bytes_and_pairs().build().unwrap();
    let encode = |text| bytes.encode(text, EncodeOptions::default()).unwrap();
    // "ab" first, then "abc"; the space goes with the word.
    assert_eq!(encode("abc"), [257]);
    // "ab" has merged before the space looks for an "a": nothing is left that joins them.
    assert_eq!(encode(" abde"), [32, 256, 260]);
    assert_eq!(encode(" a"), [258]);
    let scored = File::scored().build().unwrap();
    let encode = |text| scored.encode(text, EncodeOptions::default()).unwrap();
    // A space is put in front; ab (-262) before \u{2581}a (-263), then \u{2581}ab, then what is left.
    assert_eq!(encode("abab"), [264, 262]);
    assert_eq!(encode("\u{e9}"), [259, 3 + 0xc3, 3 + 0xa9]);
    assert_eq!(scored.decode(&[264, 262], DecodeOptions::default()).unwrap(), b"abab");
    let options = EncodeOptions { add_special: true, parse_special: true };
    assert_eq!(scored.encode("</s>a", options).unwrap(), [1, 2, 263]);
    assert_eq!(scored.encode("", options).unwrap(), [1]);
}

/// Two bytes without a token side by side once became token 0: the pair of "none" and "none" was also the mark of a free slot.
#[test]
fn bytes_without_a_token_are_dropped_wherever_they_are() {
    let mut file = File::bytes_and_pairs();
    // Bytes 4 and 6 lose their tokens.
    file.tokens[4] = b"<other>".to_vec();
    file.tokens[6] = b"<another>".to_vec();
    let tokenizer = file.build().unwrap();
    assert_eq!(tokenizer.missing_bytes(), [4, 6]);
    let encode = |text: &str| tokenizer.encode(text, EncodeOptions::default()).unwrap();
    assert!(encode("\u{4}").is_empty());
    assert!(encode("\u{4}\u{4}\u{6}\u{4}").is_empty());
    assert_eq!(encode("a\u{4}\u{4}bc\u{6}"), [97, 98, 99]);
    assert!(encode(&"\u{6}".repeat(200)).is_empty());
}

#[test]
fn control_tokens_in_plain_text_stay_text() {
    for file in [File::bytes_and_pairs(), File::scored()] {
        let tokenizer = file.build().unwrap();
        let texts: Vec<String> =
            tokenizer.control_tokens().map(|(_, text)| String::from_utf8(text.to_vec()).unwrap()).collect();
        assert!(!texts.is_empty());
        for text in texts {
            let plain = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
            assert!(plain.iter().all(|&id| !tokenizer.is_control(id)), "{text}: {plain:?}");
            assert_eq!(tokenizer.decode(&plain, DecodeOptions::default()).unwrap(), text.as_bytes());
            let parsed =
                tokenizer.encode(&text, EncodeOptions { parse_special: true, ..EncodeOptions::default() }).unwrap();
            assert_eq!(parsed.len(), 1, "{text}");
            assert!(tokenizer.is_control(parsed[0]));
        }
    }
}

#[test]
fn unknown_ids_are_refused_and_change_no_stream() {
    let tokenizer = File::bytes_and_pairs().build().unwrap();
    let vocab = tokenizer.vocab_size();
    let (last, unknown) = (vocab as u32 - 1, UnknownToken { id: vocab as u32, vocab });
    assert!(tokenizer.token_bytes(last).is_some());
    for _ in 0..2 {
        assert_eq!(tokenizer.decode(&[0, vocab as u32], DecodeOptions::default()), Err(unknown));
        assert_eq!(tokenizer.token_bytes(vocab as u32), None);
        assert_eq!(tokenizer.token_bytes(u32::MAX), None);
        assert!(!tokenizer.is_eog(u32::MAX) && !tokenizer.is_control(u32::MAX));
    }
    let mut stream = TokenStream::new(&tokenizer, DecodeOptions::default());
    assert_eq!(stream.push(0xc3).unwrap(), "");
    assert_eq!(stream.push(vocab as u32), Err(unknown));
    assert_eq!(stream.push(0xa9).unwrap(), "\u{e9}");
    assert_eq!(stream.push(0xe2).unwrap(), "");
    assert_eq!(stream.finish(), "\u{fffd}");
}

fn random_text(random: &mut Random, pieces: &[&str]) -> String {
    let mut text = String::new();
    for _ in 0..random.next() % 40 {
        match random.next() % 4 {
            0 => text.extend(char::from_u32((random.next() % 0x11_0000) as u32)),
            1 => text.extend(char::from_u32((random.next() % 0x500) as u32)),
            _ => text.push_str(pieces[random.next() as usize % pieces.len()]),
        }
    }
    text
}

#[test]
fn random_texts_come_back_byte_for_byte() {
    let mut random = Random::new("random_texts_come_back_byte_for_byte");
    let pieces =
        ["a", "b", "ab", "abc", " ", "  ", "\n", "'s", "12", "<|s|>", "<s>", "</s>", "\u{301}", "\u{1f600}", "de"];
    for pre in ["gpt-2", "llama-bpe", "qwen2", "smollm", "default"] {
        let mut file = File::bytes_and_pairs();
        file.pre = Some(pre);
        let tokenizer = file.build().unwrap();
        assert!(tokenizer.missing_bytes().is_empty());
        for _ in 0..2000 {
            let text = random_text(&mut random, &pieces);
            for parse_special in [false, true] {
                let ids = tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special }).unwrap();
                let decoded = tokenizer.decode(&ids, DecodeOptions { special: true }).unwrap();
                assert_eq!(decoded, text.as_bytes(), "{pre}: {text:?}");
                let mut stream = TokenStream::new(&tokenizer, DecodeOptions { special: true });
                let streamed: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
                assert_eq!((streamed.as_str(), stream.finish().as_str()), (text.as_str(), ""));
            }
        }
    }
    let tokenizer = File::scored().build().unwrap();
    for _ in 0..2000 {
        let text = random_text(&mut random, &pieces);
        let ids = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
        let decoded = tokenizer.decode(&ids, DecodeOptions::default()).unwrap();
        // The mark is a space from then on.
        assert_eq!(String::from_utf8(decoded).unwrap(), text.replace('\u{2581}', " "), "{text:?}");
    }
}

/// Cutting words apart and remembering them must not show: a text gives what its words give one by one.
#[test]
fn long_texts_give_what_their_words_give() {
    let mut random = Random::new("long_texts_give_what_their_words_give");
    let words = [" abab", " a", " abc", " de\u{e9}", " b"];
    for (file, puts_space) in [(File::bytes_and_pairs(), false), (File::scored(), true)] {
        let tokenizer = file.build().unwrap();
        let encode = |text: &str| tokenizer.encode(text, EncodeOptions::default()).unwrap();
        let (mut text, mut ids) = (String::from("a"), encode("a"));
        while text.len() < 100_000 {
            let word = *random.pick(&words);
            text.push_str(word);
            // A vocabulary that puts a space before a text puts the word's own back.
            ids.extend(encode(if puts_space { &word[1..] } else { word }));
        }
        assert_eq!(encode(&text), ids);
    }
}

#[test]
fn megabytes_of_one_character_take_seconds_at_most() {
    let mut file = File::bytes_and_pairs();
    // Runs of a's and of spaces that merge again and again.
    for (token, merge) in
        [("aa", "a a"), ("aaaa", "aa aa"), ("aaaaaaaa", "aaaa aaaa"), ("\u{120}\u{120}", "\u{120} \u{120}")]
    {
        file.tokens.push(token.into());
        file.types.as_mut().unwrap().push(1);
        file.merges.as_mut().unwrap().push(merge.into());
    }
    // And special tokens that overlap in every run.
    for n in 2..20 {
        file.tokens.push("=".repeat(n).into());
        file.types.as_mut().unwrap().push(4);
    }
    for file in [file, File::scored()] {
        let tokenizer = file.build().unwrap();
        for unit in ["a", " ", "\u{301}", "=", "\n", "1", "'", "ab", "\u{2581}", "\u{2003}", "<|", " \n"] {
            let text = unit.repeat((1 << 20) / unit.len());
            let start = Instant::now();
            let ids = tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special: true }).unwrap();
            let took = start.elapsed();
            let back = tokenizer.decode(&ids, DecodeOptions { special: true }).unwrap();
            assert_eq!(
                back.len(),
                if unit == "\u{2581}" && file.model == "llama" { text.len() / 3 } else { text.len() }
            );
            // Quadratic would be minutes.
            assert!(took < Duration::from_secs(20), "{unit:?}: {took:?}");
        }
    }
}
