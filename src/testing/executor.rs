#![forbid(unsafe_code)]
//! The executor as the test surface sees it.

use super::EngineInspect;
use crate::executor::Executor;
use crate::runtime::Runtime;

impl<R: Runtime> EngineInspect for Executor<R> {
    fn lane_committed(&self, lane_tag: u64) -> Option<Vec<u32>> {
        Self::lane_committed(self, lane_tag).map(<[u32]>::to_vec)
    }

    fn inject_fault(&mut self, lane_tag: u64, code: u32) {
        Self::inject_fault(self, lane_tag, code);
    }

    fn state_digest(&self) -> u64 {
        Self::state_digest(self)
    }

    fn audit(&self) {
        if let Err(error) = Self::audit(self) {
            panic!("{error}");
        }
    }
}
