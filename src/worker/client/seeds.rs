#![forbid(unsafe_code)]
//! What is cached, asked of the worker, and leases of it (W-50, W-51).

use super::connection::{Connection, DoneList, status_of};
use super::handles::LeaseSource;
use crate::record::Status;
use crate::worker::message::kind;
use crate::worker::payload::{MatchReq, MatchRes, SeedAcquire, SeedGrant};

impl Connection {
    /// What the worker has of a span; an error is an empty answer on the wire.
    ///
    /// # Errors
    /// `Fatal`: no worker is left. The span cannot be staged.
    pub(super) fn matches(&mut self, space_id: u32, span: &[u32], media: &[[u8; 32]]) -> Result<MatchRes, Status> {
        self.with_worker(|connection| {
            let request = MatchReq { space_id, span: connection.stage(span)?, media_deps: media.to_vec() };
            let (limit, mut answer) = (connection.options.request_timeout, MatchRes::default());
            let kinds = (kind::MATCH_REQ, kind::MATCH_RES);
            connection.live()?.ask(kinds, &request, &mut answer, &mut DoneList::default(), limit)?;
            Ok(answer)
        })
    }

    /// Leases a prefix; answers the host's name of the lease.
    ///
    /// # Errors
    /// The worker's; as [`Connection::matches`].
    pub(super) fn acquire(&mut self, span: &[u32], prefix_len: u64, determinism_class: u8) -> Result<u64, Status> {
        self.with_worker(|connection| {
            let request = SeedAcquire { span: connection.stage(span)?, prefix_len, determinism_class };
            let (limit, mut grant) = (connection.options.request_timeout, SeedGrant::default());
            let kinds = (kind::SEED_ACQUIRE, kind::SEED_GRANT);
            connection.live()?.ask(kinds, &request, &mut grant, &mut DoneList::default(), limit)?;
            match grant {
                SeedGrant::Granted { seed_handle, ttl_ticks, .. } => {
                    connection.lease_ticks = ttl_ticks.or(connection.lease_ticks);
                    let len = usize::try_from(prefix_len).unwrap_or(usize::MAX).min(span.len());
                    let source = LeaseSource {
                        prefix: span.get(..len).unwrap_or_default().to_vec(),
                        determinism_class,
                        adopted: false,
                        expires_at: ttl_ticks.map(|ticks| connection.ticks.saturating_add(ticks)),
                    };
                    Ok(connection.leases.add(source, seed_handle))
                }
                SeedGrant::Refused { status } => Err(status_of(status).into()),
            }
        })
    }

    /// Gives a lease back, which is not answered (W-51).
    ///
    /// # Errors
    /// `UnknownHandle`.
    pub(super) fn release(&mut self, lease: u64) -> Result<(), Status> {
        let Some(remote) = self.leases.remove(lease) else { return Err(Status::UnknownHandle) };
        let limit = self.options.request_timeout;
        let told = match (remote, self.session()) {
            (Some(remote), Some(session)) => session.tell(kind::SEED_RELEASE, &remote, limit),
            _ => Ok(()),
        };
        if let Err(cause) = told {
            self.lost(cause);
        }
        Ok(())
    }
}
