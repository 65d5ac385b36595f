//! Tokens from rows of the whole vocabulary.

use ictus::backend::{Backend, KvType, Picked};
use ictus::sample::{PENALTY_WINDOW, Penalty, SampleRequest};
use serde_json::json;

use super::{Bench, Cost, number};

impl Bench {
    /// A token of each lane: the best one, a draw as most hosts ask for it, with log-probabilities, and behind a mask, a bias and penalties. What comes back is
    /// waited for.
    pub(crate) fn picks(&self) {
        let vocab = self.sizes.model.vocab;
        // A pool brings the scratch.
        let _pool = self.backend.pages(&self.pool(1, KvType::F16)).expect("memory");
        let greedy = SampleRequest::default();
        let draw = SampleRequest { temperature: 0.8, top_p: 0.95, ..greedy };
        let said = SampleRequest { logprobs: Some(20), ..greedy };
        // All of the work, and values that change nothing: rows are changed in place, and asked again and again.
        let mask = vec![u32::MAX; vocab.div_ceil(32)];
        let recent: Vec<u32> = (0..PENALTY_WINDOW.min(vocab) as u32).collect();
        let bias: Vec<(u32, f32)> = recent.iter().map(|&id| (id, 0.0)).collect();
        let penalty = Penalty { repeat: 1.0, presence: 0.0, frequency: 0.0, window: &recent, exempt: &[] };
        let shaped = SampleRequest { mask: Some(&mask), bias: &bias, penalty: Some(penalty), ..draw };
        for &lanes in self.sizes.lanes {
            // A few hundred of them have nearly all of the weight, as a model's have; else a draw asks for more than the device looks at.
            let mut logits = self.rows_of(lanes, vocab, |i| 30.0 * number(i).powi(9));
            let mut out = vec![Picked::NotServed; lanes];
            let cost = Cost::bytes(4 * lanes * vocab);
            for (how, request) in [("greedy", greedy), ("draw", draw), ("logprobs", said), ("shaped", shaped)] {
                let shape = json!({ "how": how, "lanes": lanes, "vocab": vocab });
                self.measure("pick", shape, cost, |backend, call| {
                    let request = SampleRequest { position: call as u64, ..request };
                    backend.pick_rows(&mut logits, &vec![Some(&request); lanes], &mut out).expect("the device is well");
                });
                let is_served = |pick: &Picked| matches!(pick, Picked::Done(Ok(_)));
                assert!(out.iter().all(is_served), "{how}: {out:?}");
            }
        }
    }
}
