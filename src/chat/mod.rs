#![forbid(unsafe_code)]
//! Chat templates: messages to the prompt that a model was trained on.
//!
//! A model file carries its template as Jinja source, written for the environment that Hugging Face gives it; this is that environment:
//! `trim_blocks` and `lstrip_blocks`, Python's string methods, loop controls, `raise_exception`, `strftime_now`, `tojson` as Python
//! writes it, and the variables `messages`, `add_generation_prompt`, `bos_token`, `eos_token`.
//!
//! # Limits
//! A template comes from a file and is not trusted: it has no access to anything but its variables, is at most
//! [`MAX_TEMPLATE_BYTES`] long, and one rendering may spend [`FUEL`], about one unit for each instruction and for each 64 bytes it makes.
//! At the bound rendering ends in a typed error. A few thousand messages stay below it.
//!
//! Values can be nested as deep as the fuel lasts, and printing or dropping them recurses; so rendering runs on a thread of its own
//! whose stack has room for that. The thread ends before the call returns.
//!
//! # Not here
//! What users write is not escaped, because templates have no means for it: the text of a control token inside a message is that token
//! once the prompt is encoded. A host that cares encodes message texts by themselves, with `parse_special` off.

mod clock;
mod json;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, context};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::tokenizer::{EncodeError, EncodeOptions, Tokenizer};

/// Longest template source.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// What one rendering may spend.
pub const FUEL: u64 = 250_000;
/// Stack of a rendering: a level of nesting costs more than one unit of fuel and takes less than this over [`FUEL`].
const STACK_BYTES: usize = 256 << 20;
/// How deep macros may call each other.
const MAX_DEPTH: usize = 100;
const NAME: &str = "chat";

/// Why there is no prompt. Nothing was returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template is longer than [`MAX_TEMPLATE_BYTES`].
    #[error("a template of {bytes} bytes is too long")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The template is not Jinja.
    #[error("template line {line}: {detail}")]
    Syntax {
        /// Where, from 1; 0 when unknown.
        line: usize,
        /// What the parser said.
        detail: String,
    },
    /// The template refuses these messages.
    #[error("the template refuses: {message}")]
    Refused {
        /// Its reason.
        message: String,
    },
    /// Rendering would cost more than [`FUEL`].
    #[error("rendering costs too much")]
    TooCostly,
    /// The template does something that fails.
    #[error("template line {line}: {detail}")]
    Render {
        /// Where, from 1; 0 when unknown.
        line: usize,
        /// What the engine said.
        detail: String,
    },
    /// No thread could be started for the rendering.
    #[error("no thread for the template: {source}")]
    Thread {
        /// What the system said.
        source: std::io::Error,
    },
    /// The prompt cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// What `raise_exception` was called with, inside an engine error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl From<Error> for ChatError {
    fn from(error: Error) -> Self {
        let line = error.line().unwrap_or(0);
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(inner) = cause {
            if let Some(Raised(message)) = inner.downcast_ref() {
                return Self::Refused { message: message.clone() };
            }
            cause = inner.source();
        }
        let detail = match error.detail() {
            Some(detail) => format!("{}: {detail}", error.kind()),
            None => error.kind().to_string(),
        };
        match error.kind() {
            ErrorKind::OutOfFuel => Self::TooCostly,
            ErrorKind::SyntaxError => Self::Syntax { line, detail },
            _ => Self::Render { line, detail },
        }
    }
}

/// One message of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: &'a str,
    /// What they say.
    pub content: &'a str,
}

/// How messages are rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatOptions {
    /// Ends the prompt where the model's answer begins.
    pub add_generation_prompt: bool,
    /// The time for templates that write a date, in seconds since 1970, UTC. Without it they see no `strftime_now` and write
    /// what they have for that case.
    pub now_unix_s: Option<i64>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, now_unix_s: None }
    }
}

/// A template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of the model's tokens, empty when it has none.
    ///
    /// # Errors
    /// `TooLong`, `Syntax`.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, ChatError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(ChatError::TooLong { bytes: source.len() });
        }
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_debug(false);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_DEPTH);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
        });
        environment.add_filter("tojson", json::to_json);
        // For people who write templates; on deep values they cost more than their fuel says.
        environment.remove_filter("pprint");
        environment.remove_global("debug");
        environment.add_template_owned(NAME, source.to_owned())?;
        Ok(Self { environment, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// Compiles a model's template with the tokens of its vocabulary.
    ///
    /// # Errors
    /// `TooLong`, `Syntax`.
    pub fn for_model(source: &str, tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let text = |id: Option<u32>| {
            let bytes = id.and_then(|id| tokenizer.token_bytes(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        Self::new(source, &text(tokenizer.bos()), &text(tokenizer.eos()))
    }

    /// The prompt of these messages.
    ///
    /// # Errors
    /// `Refused` when the template raises an exception, `TooCostly` at the bound, `Thread`, `Render` for everything else.
    pub fn render(&self, messages: &[Message<'_>], options: ChatOptions) -> Result<String, ChatError> {
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("ictus-chat".to_owned()).stack_size(STACK_BYTES);
            let thread = builder
                .spawn_scoped(scope, || self.render_here(messages, options))
                .map_err(|source| ChatError::Thread { source })?;
            let panicked = |_| Err(ChatError::Render { line: 0, detail: "the engine gave up".to_owned() });
            thread.join().unwrap_or_else(panicked)
        })
    }

    fn render_here(&self, messages: &[Message<'_>], options: ChatOptions) -> Result<String, ChatError> {
        let messages: Vec<Value> =
            messages.iter().map(|message| context! { role => message.role, content => message.content }).collect();
        let clock = options.now_unix_s.map(|now_unix_s| {
            Value::from_function(move |format: String| {
                clock::format(now_unix_s, &format).ok_or_else(|| {
                    Error::new(ErrorKind::InvalidOperation, format!("time format {format:?} is not known"))
                })
            })
        });
        let mut variables = context! {
            messages,
            add_generation_prompt => options.add_generation_prompt,
            bos_token => &self.bos,
            eos_token => &self.eos,
        };
        if let Some(strftime_now) = clock {
            variables = context! { strftime_now, ..variables };
        }
        Ok(self.environment.get_template(NAME)?.render(variables)?)
    }

    /// The ids of these messages' prompt. Where the model wants BOS before a text, the prompt has it exactly once, whether the
    /// template writes it or not.
    ///
    /// # Errors
    /// Those of [`render`](Self::render), and `Encode`.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message<'_>],
        options: ChatOptions,
    ) -> Result<Vec<u32>, ChatError> {
        let prompt = self.render(messages, options)?;
        let mut ids = tokenizer.encode(&prompt, EncodeOptions { add_special: false, parse_special: true })?;
        if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos())
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }
}
