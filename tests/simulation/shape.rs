//! Engines that hosts are let loose on.

use std::rc::Rc;

use ictus::executor::{Executor, ExecutorOptions};
use ictus::record::constant::encoding;
use ictus::runtime::{CopyModel, FakeRuntime, SamplingSupport, Vocabulary};

use super::model::{compat_identity, hash};
use super::random::Random;
use super::runtime::SimRuntime;
use super::tiny::{self, Tiny};

/// What can be configured of an engine.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// The model that computes; none is the fake runtime.
    pub(crate) tiny: Option<Rc<Tiny>>,
    pub(crate) threads: usize,
    pub(crate) cells: u64,
    /// Tokens that take and give back their cells together.
    pub(crate) granule: usize,
    pub(crate) slots: usize,
    pub(crate) context: usize,
    pub(crate) vocab: u32,
    pub(crate) prefill_step: usize,
    pub(crate) batch: usize,
    /// How much the runtime picks itself: 0 nothing, 3 everything.
    pub(crate) support: u8,
    pub(crate) page: usize,
    /// Sequences can be cut anywhere; else they are head-only.
    pub(crate) cuts: bool,
    pub(crate) shares: bool,
    pub(crate) takes_over: bool,
    pub(crate) seed_min: usize,
    pub(crate) resident: u64,
    pub(crate) exported: u64,
    pub(crate) bytes_per_token: u64,
    pub(crate) ttl: u64,
    /// Longest draft of a lane that speculates; 0 is no speculation.
    pub(crate) drafts: usize,
    /// Bytes of state that move at once (S-90).
    pub(crate) slice: u64,
    /// The fake offers a lossy encoding too, which loses nothing.
    pub(crate) lossy: bool,
    /// The fake lists a vocabulary, so there are grammars.
    pub(crate) speaks: bool,
    /// The runtime takes adapters.
    pub(crate) adapts: bool,
    /// The fake's steps can be begun ahead, and every so many of their tokens have to be asked for again; 0 is none.
    pub(crate) ahead: bool,
    pub(crate) again: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            tiny: None,
            threads: 1,
            cells: 0,
            granule: 1,
            slots: 0,
            context: 40,
            vocab: 48,
            prefill_step: 0,
            batch: 8,
            support: 1,
            page: 1,
            cuts: true,
            shares: false,
            takes_over: false,
            seed_min: 0,
            resident: 0,
            exported: 0,
            bytes_per_token: 4,
            ttl: 5,
            drafts: 0,
            slice: 4 << 20,
            lossy: false,
            speaks: false,
            adapts: false,
            ahead: false,
            again: 0,
        }
    }
}

/// Adapters that hosts use.
pub(crate) const ADAPTERS: usize = 2;

/// Two ids in the middle: hot lanes meet them, greedy ones too.
pub(crate) const END_IDS: [u32; 2] = [7, 21];

/// The text of a token of a fake that speaks; none for an end token.
pub(crate) fn piece(token: u32) -> Option<String> {
    const PIECES: [&str; 11] = ["a", "b", "c", "ab", "bc", "ca", "\"", "", "\"a", "b\"", "abc"];
    let other = || format!("<{token}>");
    (!END_IDS.contains(&token)).then(|| PIECES.get(token as usize).map_or_else(other, |piece| (*piece).to_owned()))
}

///
fn vocabulary(size: u32) -> Vocabulary {
    let special: Vec<(String, u32)> = END_IDS.iter().map(|id| (format!("<end {id}>"), *id)).collect();
    let marked = |id: u32| [b"\xff", format!("<end {id}>").as_bytes()].concat();
    let tokens = (0..size).map(|id| piece(id).map_or_else(|| marked(id), String::into_bytes).into()).collect();
    Vocabulary { tokens, special, end_ids: END_IDS.to_vec() }
}

impl Shape {
    /// The engine under test.
    pub(crate) fn engine(&self) -> Executor<SimRuntime> {
        let runtime = match &self.tiny {
            Some(tiny) => SimRuntime::paged(tiny.runtime(self)),
            None => SimRuntime::fake(self.fake()),
        };
        let options = ExecutorOptions {
            seed_ttl_ticks: self.ttl,
            op_slice_bytes: self.slice,
            // What is seen of an entry on its way out of the pool (S-99) is not the model's: it leaves at once.
            cache_slice_bytes: u64::MAX,
            ..Default::default()
        };
        Executor::with_options(runtime, options)
    }

    fn fake(&self) -> FakeRuntime {
        FakeRuntime::with(|options| {
            let descriptor = &mut options.descriptor;
            descriptor.vocab_size = self.vocab;
            descriptor.max_seq_len = self.context as u64;
            descriptor.cells_total = self.cells;
            descriptor.cell_granule_tokens = self.granule as u32;
            descriptor.max_seqs = self.slots as u32;
            descriptor.max_batch = self.batch as u32;
            descriptor.kv_bytes_per_token = self.bytes_per_token;
            descriptor.prefill_step_tokens = self.prefill_step as u32;
            descriptor.page_size_tokens = self.page as u32;
            descriptor.truncate_partial = self.cuts;
            descriptor.copy_shares_cells = self.shares;
            descriptor.takeover_preferred = self.takes_over;
            descriptor.seed_min_tokens = self.seed_min as u64;
            descriptor.cache_resident_cells = self.resident;
            descriptor.cache_exported_cells = self.exported;
            descriptor.sampling = SamplingSupport {
                greedy: self.support >= 1,
                draws: self.support >= 2,
                logprobs: self.support >= 2,
                shaping: self.support >= 3,
            };
            descriptor.verify_rows = self.drafts > 0;
            descriptor.workloads.adapters = self.adapts;
            if self.lossy {
                descriptor.export_encodings.push(encoding::Q8);
            }
            options.copy_model = (self.drafts > 0).then_some(CopyModel { miss_every: 5 });
            options.end_ids = END_IDS.to_vec();
            options.vocabulary = self.speaks.then(|| vocabulary(self.vocab));
            options.steps_ahead = self.ahead;
            options.picks_again_every = self.again;
            options.record = false;
        })
    }

    /// S-80, of the model alone or with an adapter.
    pub(crate) fn identity(&self, adapter: Option<usize>) -> [u8; 32] {
        let digest = adapter.map(|name| self.adapter_digest(name));
        match &self.tiny {
            Some(_) => compat_identity("ictus-paged", env!("CARGO_PKG_VERSION"), [0; 32], digest),
            None => compat_identity("fake", "1", [0xFA; 32], digest),
        }
    }

    /// Where an adapter comes from.
    pub(crate) fn adapter_path(&self, name: usize) -> String {
        match &self.tiny {
            Some(tiny) => tiny.adapter_path(name),
            None => format!("fake:{name}"),
        }
    }

    /// Identity of what an adapter computes; that of a fake one is hashed from its path.
    pub(crate) fn adapter_digest(&self, name: usize) -> [u8; 32] {
        if let Some(tiny) = &self.tiny {
            return tiny.adapter_digest(name);
        }
        let path = self.adapter_path(name);
        let part = |salt: u64| hash(&[], path.as_bytes(), salt).to_le_bytes();
        [part(3), part(4), part(5), part(6)].concat().try_into().expect("32 bytes")
    }

    /// Payload bytes of a token (R-36; the pool's own numbers, or blocks of 32 with a scale); none for an encoding that is not offered.
    pub(crate) fn token_bytes(&self, how: u8) -> Option<u64> {
        let scales = |width: usize| 4 * width.div_ceil(32);
        match (&self.tiny, how) {
            (None, encoding::LOSSLESS) => Some(4),
            (None, encoding::Q8) if self.lossy => Some(4),
            (None, _) => None,
            (Some(tiny), how) => {
                let width = tiny.head_dim;
                let vector = match how {
                    encoding::LOSSLESS => 4 * width,
                    encoding::Q8 => scales(width) + width,
                    encoding::Q4 => scales(width) + width.div_ceil(2),
                    _ => return None,
                };
                Some(2 * (tiny.vectors * vector) as u64)
            }
        }
    }

    /// A random engine: every limit is now and then there, and mostly tight.
    pub(crate) fn random(random: &mut Random) -> Self {
        let context = *random.pick(&[12, 24, 40, 64]);
        let cuts = random.below(4) > 0;
        let cells = *random.pick(&[0, 0, 60, 120, 250]);
        let page = *random.pick(&[1, 1, 2, 16]);
        // Whole pages, in a pool with a bound; how many cells a checkpoint may take is told by cells alone.
        let granule = if cuts && cells > 0 && random.below(2) == 0 { page } else { 1 };
        Self {
            cells: if cells == 0 { 0 } else { (cells as u64).max(context as u64).next_multiple_of(granule as u64) },
            granule,
            slots: *random.pick(&[0, 0, 3, 6, 12]),
            context,
            vocab: *random.pick(&[33, 48, 100]),
            prefill_step: *random.pick(&[0, 0, 1, 5, 16]),
            batch: *random.pick(&[2, 8]),
            support: random.below(4) as u8,
            page,
            cuts,
            shares: random.below(2) == 0,
            takes_over: random.below(2) == 0,
            seed_min: *random.pick(&[0, 0, 4, 9]),
            resident: *random.pick(&[0, 0, 1, 10, 40]),
            exported: *random.pick(&[0, 0, 12, 64]),
            bytes_per_token: *random.pick(&[0, 1, 4]),
            ttl: *random.pick(&[0, 1, 5, 64]),
            slice: *random.pick(&[1 << 40, 1 << 40, 40, 8, 0]),
            lossy: random.below(2) == 0,
            speaks: random.below(2) == 0,
            adapts: random.below(2) == 0,
            ahead: random.below(2) == 0,
            again: *random.pick(&[0, 0, 11, 3]),
            ..Self::default()
        }
        .prompt_exports()
    }

    /// Entries leave the pool whole, or not at all: what is seen of one on its way (S-99) is not the model's.
    fn prompt_exports(self) -> Self {
        let slice = if self.exported > 0 { 1 << 40 } else { self.slice };
        Self { slice, ..self }
    }

    /// A runtime that verifies drafts and repeats what was said, but for every fifth length.
    pub(crate) fn random_speculating(random: &mut Random) -> Self {
        let drafts = 1 + random.below(5);
        Self { cuts: true, drafts, vocab: 33, ..Self::random(random) }
    }

    /// A runtime whose state cannot be cut, with prompts long enough for checkpoints (T-90).
    pub(crate) fn random_recurrent(random: &mut Random) -> Self {
        Self { cuts: false, granule: 1, context: 300, vocab: 48, page: *random.pick(&[1, 16]), ..Self::random(random) }
    }

    /// A tiny model on pages.
    pub(crate) fn random_paged(random: &mut Random) -> Self {
        let tiny = Tiny::get(random.below(tiny::FILES.len()));
        let context = *random.pick(&[12, 24, 40, tiny::CONTEXT_MAX]);
        let page = *random.pick(&[1, 4, 4, 16]);
        let pages = *random.pick(&[64, 128, 250, 700usize]) / page;
        let token = 8 * (tiny.vectors * tiny.head_dim) as u64;
        Self {
            cells: (pages.max(context.div_ceil(page)) * page) as u64,
            granule: page,
            context,
            vocab: tiny.vocab,
            prefill_step: *random.pick(&[0, 0, 1, 5, 16]),
            batch: *random.pick(&[2, 8]),
            support: 3,
            page,
            shares: true,
            resident: *random.pick(&[0, 0, 1, 16, 48]),
            exported: *random.pick(&[0, 0, 16, 64]),
            bytes_per_token: token,
            ttl: *random.pick(&[0, 1, 5, 64]),
            drafts: *random.pick(&[0, 0, 0, 1, 4]),
            slice: *random.pick(&[1 << 40, 1 << 40, 10 * token, 3 * token, 0]),
            adapts: true,
            tiny: Some(tiny),
            ..Self::default()
        }
        .prompt_exports()
    }
}
