#![forbid(unsafe_code)]
use super::*;

/// One token per byte, some words, runs of blanks, and special tokens: `<call>` 300, `</call>` 301, `<end>` 302, `<stop>` 303.
struct Words {
    tokens: Vec<Box<[u8]>>,
    special: Vec<(String, u32)>,
}

const END: [u32; 2] = [302, 303];

impl Words {
    fn new() -> Self {
        let mut tokens: Vec<Box<[u8]>> = (0..=255u8).map(|byte| Box::from([byte])).collect();
        let words = ["true", "false", "null", "{\"", "\":", "\"}", "ok", "name", "    ", " "];
        tokens.extend(words.map(|word| Box::from(word.as_bytes())));
        tokens.resize(300, Box::from([]));
        let mut special = Vec::new();
        for text in ["<call>", "</call>", "<end>", "<stop>"] {
            special.push((text.to_owned(), tokens.len() as u32));
            tokens.push([b"\xff", text.as_bytes()].concat().into());
        }
        Self { tokens, special }
    }

    fn compiler(&self) -> Compiler {
        let tokens = Tokens { tokens: &self.tokens, special: &self.special, end_ids: &END };
        Compiler::new(&tokens, Limits::default()).expect("a vocabulary")
    }

    /// The tokens of a text, byte by byte; the text of special tokens is those tokens.
    fn encode(&self, text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            match self.special.iter().find_map(|(special, id)| Some((*id, rest.strip_prefix(special.as_str())?))) {
                Some((id, tail)) => {
                    tokens.push(id);
                    rest = tail;
                }
                None => {
                    let (head, tail) = rest.split_at(c.len_utf8());
                    tokens.extend(head.bytes().map(u32::from));
                    rest = tail;
                }
            }
        }
        tokens
    }
}

fn schema(compiler: &Compiler, document: &str) -> Result<Grammar, GrammarError> {
    compiler.compile(Source::schema(document, &Limits::default())?)
}

fn structural(compiler: &Compiler, document: &str) -> Result<Grammar, GrammarError> {
    compiler.compile(Source::structural(document, &Limits::default())?)
}

fn allows(cursor: &mut Cursor, token: u32) -> bool {
    cursor.prepare();
    cursor.mask().get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Goes over a text token by token, checking the mask before each; none when the text leaves the grammar.
fn walk(words: &Words, grammar: &Grammar, text: &str) -> Option<Cursor> {
    let mut cursor = grammar.cursor();
    for token in words.encode(text) {
        let allowed = allows(&mut cursor, token);
        let accepted = cursor.accept(token).is_ok();
        assert!(accepted || !allowed, "the mask allows {token} and the cursor refuses it: {text}");
        if !allowed {
            return None;
        }
    }
    Some(cursor)
}

/// R-64, R-65: masks of a closed grammar, its completion, and that nothing follows.
#[test]
fn closed_grammar_is_complete_when_nothing_can_follow() {
    let words = Words::new();
    let compiler = words.compiler();
    let document = r#"{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}"#;
    let grammar = schema(&compiler, document).expect("it compiles");
    let mut cursor = walk(&words, &grammar, r#"{"ok":tru"#).expect("it fits");
    assert!(!cursor.is_complete() && !allows(&mut cursor, END[0]));
    cursor.accept(u32::from(b'e')).expect("true");
    assert!(!cursor.is_complete());
    assert_eq!(cursor.accept(u32::from(b'}')), Ok(true));
    assert!(END.iter().all(|&end| allows(&mut cursor, end)), "all end tokens are allowed (R-64)");
    assert_eq!(cursor.mask().iter().map(|word| word.count_ones()).sum::<u32>(), 2);
    assert!(cursor.accept(u32::from(b'x')).is_err(), "nothing follows");
    cursor.prepare();
    assert!(cursor.mask().iter().all(|&word| word == 0) && cursor.failure().is_some());
}

/// R-65: a number may go on, so it ends by an end token; then the text is complete.
#[test]
fn text_that_may_go_on_ends_by_an_end_token() {
    let words = Words::new();
    let grammar = schema(&words.compiler(), r#"{"type": "integer"}"#).expect("it compiles");
    let mut cursor = walk(&words, &grammar, "12").expect("it fits");
    assert!(!cursor.is_complete() && allows(&mut cursor, END[1]) && allows(&mut cursor, u32::from(b'3')));
    assert_eq!(cursor.accept(END[1]), Ok(true));
}

/// R-66: asking twice changes nothing, and a cursor that was asked for no mask goes the same way.
#[test]
fn masks_depend_on_the_tokens_alone() {
    let words = Words::new();
    let grammar =
        schema(&words.compiler(), r#"{"type": "array", "items": {"enum": ["ok", "name"]}}"#).expect("it compiles");
    let text = words.encode(r#"[ "ok", "name"]"#);
    let (mut asked, mut silent) = (grammar.cursor(), grammar.cursor());
    for (n, &token) in text.iter().enumerate() {
        asked.prepare();
        let mask = asked.mask().to_vec();
        asked.prepare();
        assert_eq!(asked.mask(), mask);
        let mut fresh = grammar.cursor();
        fresh.replay(&text[..n]).expect("a prefix of a text that fits");
        fresh.prepare();
        assert_eq!(fresh.mask(), mask, "after {n} tokens");
        asked.accept(token).expect("it fits");
    }
    silent.replay(&text).expect("it fits");
    assert_eq!((asked.is_complete(), asked.accepted()), (true, silent.accepted()));
}

/// R-62, T-32: an end token ends a replay, and only where the text may end.
#[test]
fn replay_takes_an_end_token_only_at_the_end() {
    let words = Words::new();
    let grammar = schema(&words.compiler(), r#"{"type": "integer"}"#).expect("it compiles");
    let replay = |tokens: &[u32]| grammar.cursor().replay(tokens);
    assert_eq!(replay(&[49, END[0]]), Ok(()));
    assert_eq!(replay(&[END[0]]), Err(Refused { token: END[0] }));
    assert_eq!(replay(&[49, END[0], 50]), Err(Refused { token: 50 }));
    assert_eq!(replay(&[49, 9999]), Err(Refused { token: 9999 }));
}

/// RS-22, R-68: acceptance of whole texts.
#[test]
fn rs_22_closing_rule_decides_what_is_accepted() {
    let words = Words::new();
    let compiler = words.compiler();
    let tagged = r#"{"type": "tag", "begin": "<call>", "end": "</call>", "content": {"type": "json_schema",
        "json_schema": {"properties": {"a": {"type": "integer"}}}}}"#;
    let cases = [
        (r#"{"properties": {"a": {"type": "integer"}}}"#, r#"{"a": 1, "b": 2}"#, false),
        (r#"{"properties": {"a": {"type": "integer"}}, "additionalProperties": true}"#, r#"{"a": 1, "b": 2}"#, true),
        (r#"{"type": "object"}"#, r#"{"b": 2}"#, true),
        (
            r##"{"$defs": {"x": {"properties": {"a": {"type": "integer"}}}}, "$ref": "#/$defs/x"}"##,
            r#"{"b": 2}"#,
            false,
        ),
        (r#"{"prefixItems": [{"type": "integer"}]}"#, "[1, 2]", false),
        (r#"{"type": "array"}"#, r#"[1, "x"]"#, true),
    ];
    for (document, text, fits) in cases {
        let grammar = schema(&compiler, document).expect("it compiles");
        assert_eq!(walk(&words, &grammar, text).is_some(), fits, "{document} {text}");
        assert_eq!(grammar.cursor().replay(&words.encode(text)).is_ok(), fits, "{document} {text}");
    }
    let grammar = structural(&compiler, tagged).expect("it compiles");
    assert!(walk(&words, &grammar, r#"<call>{"a": 1}</call>"#).is_some());
    assert!(walk(&words, &grammar, r#"<call>{"b": 1}</call>"#).is_none());
}

/// Every structural format, by texts that fit and texts that do not.
#[test]
fn structural_formats_take_what_their_table_says() {
    let words = Words::new();
    let compiler = words.compiler();
    let cases: &[(&str, &[&str], &[&str])] = &[
        (
            r#"{"type": "const_string", "value": "say <call> \"x\"\u007f"}"#,
            &["say <call> \"x\"\u{7f}<end>"],
            &["say x"],
        ),
        (
            r#"{"type": "structural_tag", "format": {"type": "regex", "pattern": "a/b|\\d+"}}"#,
            &["a/b<end>", "12<stop>"],
            &["ab", "<end>"],
        ),
        (
            r#"{"type": "sequence", "elements": [{"type": "regex", "pattern": "[a-z]+"}, {"type": "const_string", "value": "end"}]}"#,
            &["blend<end>", "endend<end>"],
            &["ble<end>"],
        ),
        (
            r#"{"type": "or", "elements": [{"type": "const_string", "value": "yes"}, {"type": "token", "token": "<call>"}]}"#,
            &["yes<end>", "<call><end>"],
            &["no", "</call>", "yes<call>"],
        ),
        (r#"{"type": "optional", "content": {"type": "const_string", "value": "a"}}"#, &["<end>", "a<end>"], &["aa"]),
        (r#"{"type": "plus", "content": {"type": "const_string", "value": "a"}}"#, &["a<end>", "aaa<end>"], &["<end>"]),
        (r#"{"type": "star", "content": {"type": "token", "token": 300}}"#, &["<end>", "<call><call><end>"], &["a"]),
        (
            r#"{"type": "tag", "begin": {"type": "token", "token": "<call>"}, "content": {"type": "any_tokens"}, "end": {"type": "token", "token": "</call>"}}"#,
            &["<call>any text </call><end>", "<call><call></call><end>"],
            &["<call></call>x", "<call><end>"],
        ),
        (
            r#"{"type": "any_tokens", "exclude_tokens": ["<call>", 97]}"#,
            &["hello</call><stop>", "<end>"],
            &["a", "<call>"],
        ),
        (
            r#"{"type": "json_schema", "json_schema": {"type": "boolean"}}"#,
            &["true<end>", "  true <end>"],
            &["     true", "1"],
        ),
        (r#"{"type": "sequence", "elements": []}"#, &["<end>"], &["a"]),
    ];
    for (document, fitting, others) in cases {
        let grammar = structural(&compiler, document).unwrap_or_else(|error| panic!("{document}: {error}"));
        for text in *fitting {
            let cursor = walk(&words, &grammar, text).unwrap_or_else(|| panic!("{document} takes {text:?}"));
            assert!(cursor.is_complete(), "{document}: an end token ends {text:?}");
        }
        for text in *others {
            assert!(walk(&words, &grammar, text).is_none(), "{document} does not take {text:?}");
        }
    }
}

/// R-72: free text and tags, for each pair of flags.
#[test]
fn triggered_tags_take_what_their_flags_say() {
    let words = Words::new();
    let compiler = words.compiler();
    let document = |flags: &str| {
        format!(
            r#"{{"type": "triggered_tags", "triggers": ["<call>"], {flags} "tags": [{{"begin": "<call>",
                "content": {{"type": "json_schema", "json_schema": {{"type": "integer"}}}}, "end": "</call>"}}]}}"#
        )
    };
    let texts =
        ["<end>", "hi<end>", "<call>1</call><end>", "hi<call>1</call>you<call>2</call><end>", "<call>1</call>hi<end>"];
    let cases = [
        ("", [true, true, true, true, true]),
        (r#""at_least_one": true,"#, [false, false, true, false, true]),
        (r#""stop_after_first": true,"#, [true, true, true, false, false]),
        (r#""at_least_one": true, "stop_after_first": true,"#, [false, false, true, false, false]),
    ];
    for (flags, fits) in cases {
        let grammar = structural(&compiler, &document(flags)).expect("it compiles");
        for (text, fits) in texts.iter().zip(fits) {
            assert_eq!(walk(&words, &grammar, text).is_some(), fits, "{flags} {text}");
        }
        assert!(walk(&words, &grammar, "<call>x").is_none());
    }
}

/// Beyond the contract: regular expressions and Lark grammars are closed like schemas.
#[test]
fn regex_and_lark_are_closed_grammars() {
    let words = Words::new();
    let compiler = words.compiler();
    let limits = Limits::default();
    let regex = compiler.compile(Source::regex("a{2}/[bc]", &limits).expect("it parses")).expect("it compiles");
    assert!(walk(&words, &regex, "aa/c").is_some_and(|cursor| cursor.is_complete()));
    assert!(walk(&words, &regex, "ab").is_none());
    let source = Source::lark("start: \"(\" start \")\" | \"x\" <call>", &limits).expect("it parses");
    let lark = compiler.compile(source).expect("it compiles");
    assert!(walk(&words, &lark, "((x<call>))").is_some_and(|cursor| cursor.is_complete()));
    assert!(walk(&words, &lark, "(x<call>x").is_none());
    assert!(matches!(Source::regex("a\\", &limits), Err(GrammarError::Malformed { .. })));
    let source = Source::lark("start: \"ok\" <end>", &limits).expect("it parses");
    let ending = compiler.compile(source).expect("it compiles");
    let mut cursor = walk(&words, &ending, "ok").expect("it fits");
    assert!(!cursor.is_complete(), "the grammar asks for the end token itself");
    assert!(!allows(&mut cursor, END[1]) && cursor.accept(END[0]) == Ok(true));
}

/// A language without a sentence is refused when it is created, in each kind of document.
#[test]
fn language_without_a_sentence_is_refused() {
    let words = Words::new();
    let compiler = words.compiler();
    let limits = Limits::default();
    let schemas = [
        "false",
        r#"{"enum": []}"#,
        r#"{"type": "string", "minLength": 5, "maxLength": 3}"#,
        r#"{"type": "integer", "minimum": 5, "maximum": 3}"#,
        r#"{"type": "object", "properties": {"a": false}, "required": ["a"]}"#,
        r##"{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}"##,
        r##"{"$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}, "$ref": "#/$defs/a"}"##,
        r##"{"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}, "$ref": "#/$defs/a"}"##,
    ];
    for document in schemas {
        assert_eq!(schema(&compiler, document).err(), Some(GrammarError::NoSentence), "{document}");
    }
    assert!(
        schema(
            &compiler,
            r##"{"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}"##
        )
        .is_ok()
    );
    for grammar in
        ["start: start", "start: \"a\" start", "start: \"a\" A\nA: /a/ & /b/", "start: \"x\" a\na: \"y\" b\nb: a \"z\""]
    {
        let source = Source::lark(grammar, &limits).expect("it parses");
        assert_eq!(compiler.compile(source).err(), Some(GrammarError::NoSentence), "{grammar}");
    }
    let source = Source::regex(r"[^\x00-\x{10FFFF}]", &limits).expect("it parses");
    assert_eq!(compiler.compile(source).err(), Some(GrammarError::NoSentence));
}

/// R-60: no end token, no grammar; an end id past the listed tokens is none.
#[test]
fn vocabulary_without_an_end_token_is_refused() {
    let words = Words::new();
    for end_ids in [&[][..], &[9999][..]] {
        let tokens = Tokens { tokens: &words.tokens, special: &words.special, end_ids };
        assert_eq!(Compiler::new(&tokens, Limits::default()).err(), Some(GrammarError::NoEndToken));
    }
}

/// R-60: nobody pays for the tree of a vocabulary who has no grammar, and who shares it pays once.
#[test]
fn engines_share_a_compiler_that_the_first_grammar_makes() {
    let words = Words::new();
    let tokens = || Tokens { tokens: &words.tokens, special: &words.special, end_ids: &END };
    let shared = SharedCompiler::default();
    let mut engines = [0; 2].map(|_| Grammars::new(Limits::default(), shared.clone()));
    assert!(!shared.is_made());
    for grammars in &mut engines {
        let source = Source::schema(r#"{"type": "null"}"#, grammars.limits()).expect("it parses");
        assert_eq!(grammars.create(source, Some(tokens())), Ok(1), "handles are each engine's own");
        assert!(shared.is_made());
    }
    let first = shared.get(&tokens(), &Limits::default()).expect("it is there");
    assert!(std::sync::Arc::ptr_eq(&first, &shared.get(&tokens(), &Limits::default()).expect("it is there")));
    let bad = SharedCompiler::default();
    let endless = Tokens { end_ids: &[], ..tokens() };
    assert_eq!(bad.get(&endless, &Limits::default()).err(), Some(GrammarError::NoEndToken));
    assert!(!bad.is_made() && bad.get(&tokens(), &Limits::default()).is_ok(), "a failure is not kept");
}

/// R-63: the life of a handle.
#[test]
fn handles_ascend_and_marked_ones_go_when_they_are_returned() {
    let words = Words::new();
    let mut grammars = Grammars::default();
    let create = |grammars: &mut Grammars| {
        let source = Source::schema(r#"{"type": "null"}"#, grammars.limits()).expect("it parses");
        grammars.create(source, Some(Tokens { tokens: &words.tokens, special: &words.special, end_ids: &END }))
    };
    let none = Source::schema("{}", &Limits::default()).expect("it parses");
    assert_eq!(grammars.create(none, None), Err(GrammarError::NoVocabulary));
    assert_eq!((create(&mut grammars), create(&mut grammars)), (Ok(1), Ok(2)));
    assert!(grammars.borrow(1) && !grammars.borrow(1) && grammars.cursor(1).is_none());
    assert!(grammars.free(1) && !grammars.free(1), "marked, and unknown to a second free");
    grammars.give_back(1);
    assert!(grammars.cursor(1).is_none() && !grammars.borrow(1) && !grammars.free(1));
    assert!(grammars.borrow(2));
    assert_eq!(grammars.borrowed().collect::<Vec<_>>(), [2]);
    grammars.give_back(2);
    assert!(grammars.cursor(2).is_some() && grammars.free(2) && !grammars.free(2));
    assert_eq!(create(&mut grammars), Ok(3), "handles are never reused");
}
