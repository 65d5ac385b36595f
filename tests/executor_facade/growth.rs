//! Growth in runs and in calls: what is installed, what is not, and who may try again.

use ictus::capacity::{DeviceAccount, Ledger, Limits};
use ictus::executor::Executor;
use ictus::facade::{Bad, Blocked, Chunk, CoreOptions, Domain, Lack, Refusal, Remedy, Seq, Shortfall, Work};

use crate::host::{Host, bad, blocked, pool, prompt, short, text, token};

const WORKSPACE: usize = Domain::Workspace.index();
const NOTHING: [u64; 7] = [0; 7];

/// What a core may grow to, and in which account.
struct Room<'a> {
    arena: u64,
    most: u64,
    budget: u64,
    account: Option<&'a DeviceAccount>,
}

/// A core whose batches are charged so many bytes per token.
fn growing(blocks: u64, token_bytes: u64, room: &Room<'_>) -> Host {
    let executor = Executor::new(pool(blocks, 8));
    let mut limits: Limits = executor.limits();
    (limits.total[WORKSPACE], limits.max[WORKSPACE]) = (room.arena, room.most);
    let installed = limits.block_bytes * blocks + room.arena;
    limits.max[Domain::Budget.index()] = installed.saturating_add(room.budget);
    let private = DeviceAccount::new(u64::MAX);
    let account = room.account.unwrap_or(&private);
    let ledger = Ledger::with_account(limits, account, u64::MAX).expect("what is installed fits");
    let options = CoreOptions { workspace_token_bytes: token_bytes, ..CoreOptions::default() };
    Host::with(executor.with_ledger(ledger), options)
}

fn whole(host: &Host, seq: Seq, len: usize) -> Work<'_> {
    let chunk = Chunk::new(0, len, len).expect("it is one");
    Work::Prefill { seq, chunk, whole: true, logits: &host.greedy }
}

fn arena(host: &Host) -> u64 {
    let memory = host.memory();
    memory.resident - memory.blocks_total * memory.block_size
}

/// Bytes that nobody can have: the allocator says no.
const TOO_MANY: u64 = 1 << 56;

/// memory that cannot be had leaves no trace, in a run or in a call.
#[test]
fn xs_42_allocation_that_fails_leaves_no_trace() {
    let account = DeviceAccount::new(u64::MAX);
    let host = growing(8, TOO_MANY, &Room { arena: 10, most: u64::MAX - 1, budget: u64::MAX, account: Some(&account) });
    let seq = host.admit(&prompt(40, 1), 64).expect("there is room");
    let (before, claimed, seen) = (host.memory(), account.claimed(), host.executor.capacity().now());
    for _ in 0..2 {
        let refused = blocked(host.one(whole(&host, seq, 40)));
        assert_eq!((short(&refused), refused.remedy, refused.grew), (vec![Domain::Workspace], Remedy::Grow, 0));
        assert_eq!(refused.short[0].lack, Lack::Growth);
        let still = blocked(host.executor.grow(refused));
        assert_eq!((still.remedy, short(&still)), (Remedy::Wait, vec![Domain::Workspace]));
        assert_eq!((host.memory(), account.claimed()), (before, claimed), "the bytes went back");
        let now = host.executor.capacity().now();
        assert_eq!((now.epochs(), now.resized()), (seen.epochs(), seen.resized()), "nothing moved");
        assert_eq!(host.executor.frontier(seq), Ok(0));
    }
    assert_eq!((host.executor.stats().growths, host.executor.stats().accounting_faults), (0, 0));
}

/// evidence that somebody else has made good is no reason to install anything.
#[test]
fn xs_43_evidence_that_was_met_meanwhile_installs_nothing() {
    // A device that has 100 bytes left beside two cores.
    let installed =
        |blocks, arena| growing(blocks, 0, &Room { arena, most: arena, budget: 0, account: None }).memory().own_claimed;
    let account = DeviceAccount::new(installed(1, 1000) + installed(8, 100) + 100);
    let held = growing(1, 0, &Room { arena: 1000, most: 1000, budget: 0, account: Some(&account) });
    let host = growing(8, 10, &Room { arena: 100, most: 1000, budget: 1000, account: Some(&account) });
    let question = prompt(40, 1);
    let seq = host.admit(&question, 64).expect("there is room");
    // Another core has the bytes: a run cannot grow by itself.
    let [first, kept] = [0, 1].map(|_| blocked(host.one(whole(&host, seq, 40))));
    assert_eq!((first.remedy, first.grew, arena(&host)), (Remedy::Grow, 0, 100));
    let waiting = blocked(host.executor.grow(first));
    assert_eq!((waiting.remedy, short(&waiting)), (Remedy::Wait, vec![Domain::Workspace, Domain::Device]));
    drop(held);
    assert_eq!(host.executor.capacity().changed(&waiting.ticket), Ok(true), "the device has room");
    let receipt = host.executor.grow(first).expect("there are bytes now");
    assert_eq!((receipt.gained[WORKSPACE], arena(&host)), (300, 400));
    let seen = host.executor.capacity().now();
    for _ in 0..2 {
        let receipt = host.executor.grow(kept).expect("somebody else has grown it");
        assert_eq!((receipt.gained, receipt.freed, arena(&host)), (NOTHING, NOTHING, 400));
    }
    assert_eq!(host.executor.capacity().changed(&seen), Ok(false));
    assert_eq!(host.executor.stats().growths, 1);
    let row = host.one(whole(&host, seq, 40)).expect("it fits");
    assert_eq!(token(&row), text(&question, 1)[0]);
}

/// an arena that lies idle is not taken from the demand that needs it.
#[test]
fn xs_45_idle_arena_is_not_taken_from_its_own_demand() {
    // 100 bytes lie idle, 40 more may be claimed, and 150 are wanted: giving the 100 up would not help whoever needs all of them.
    let host = growing(8, 10, &Room { arena: 100, most: 1000, budget: 40, account: None });
    let seq = host.admit(&prompt(15, 1), 64).expect("there is room");
    let (before, seen) = (host.memory(), host.executor.capacity().now());
    let refused = blocked(host.one(whole(&host, seq, 15)));
    assert_eq!((refused.remedy, refused.short[0].need, refused.short[0].total), (Remedy::Grow, 150, 100));
    let still = blocked(host.executor.grow(refused));
    assert_eq!((still.remedy, short(&still)), (Remedy::Wait, vec![Domain::Workspace, Domain::Budget]));
    assert_eq!((host.memory(), arena(&host)), (before, 100));
    assert_eq!(host.executor.capacity().changed(&seen), Ok(false));
    // What fits into both is installed, and nothing was lost on the way.
    let smaller = host.admit(&prompt(14, 2), 64).expect("there is room");
    let row = host.one(whole(&host, smaller, 14)).expect("40 more are enough");
    assert_eq!((token(&row), arena(&host)), (text(&prompt(14, 2), 1)[0], 140));
}

/// a run that grew what it lacked and is still short says so; its host may try once more, and only for news.
#[test]
fn xs_47_growth_inside_a_run_is_proof_for_one_retry() {
    let host = growing(3, 10, &Room { arena: 100, most: 1000, budget: 1000, account: None });
    let (hog, _) = host.started(&prompt(5, 9), 8);
    let question = prompt(70, 1);
    let seq = host.admit(&question, 80).expect("there is room");
    let refused = blocked(host.one(whole(&host, seq, 70)));
    assert_eq!((short(&refused), refused.remedy), (vec![Domain::Blocks], Remedy::Wait), "the workspace has grown");
    assert_eq!((refused.grew, arena(&host)), (host.executor.capacity().now().resized(), 700));
    assert!(refused.grew > 0);
    let mut used = 0;
    assert!(refused.may_retry(&mut used) && !refused.may_retry(&mut used), "once");
    let again = blocked(host.one(whole(&host, seq, 70)));
    assert_eq!((again.grew, again.may_retry(&mut used)), (0, false), "nothing grew in that call");
    // Growth that is none of its business proves nothing: somebody else's call installs workspace.
    let entry =
        Shortfall { domain: Domain::Workspace, lack: Lack::Growth, need: 800, free: 700, total: 700, max: 1000 };
    let others = Blocked::on(Remedy::Grow, &[entry], &host.executor.capacity().now());
    assert_eq!(host.executor.grow(others).expect("there are bytes").gained[WORKSPACE], 100);
    let other = blocked(host.one(whole(&host, seq, 70)));
    assert_eq!((short(&other), other.grew, other.may_retry(&mut used)), (vec![Domain::Blocks], 0, false));
    host.close(hog);
    assert_eq!(token(&host.one(whole(&host, seq, 70)).expect("there is room")), text(&question, 1)[0]);
}

/// evidence that is not short any more and whose ticket has not moved is nobody's; it is counted, and sends nobody round in circles.
#[test]
fn x_33_evidence_that_nothing_moved_for_is_no_reason_to_retry() {
    let host = growing(8, 10, &Room { arena: 100, most: 1000, budget: 1000, account: None });
    let now = host.executor.capacity().now();
    let entry = Shortfall { domain: Domain::Workspace, lack: Lack::Growth, need: 50, free: 0, total: 40, max: 1000 };
    let forged = Blocked::on(Remedy::Grow, &[entry], &now);
    for faults in 1..3 {
        let refused = blocked(host.executor.grow(forged));
        assert_eq!((refused.remedy, short(&refused)), (Remedy::Wait, vec![Domain::Workspace]));
        assert_eq!(host.executor.stats().accounting_faults, faults);
    }
    let foreign = growing(1, 0, &Room { arena: 1, most: 1, budget: 0, account: None });
    assert_eq!(bad(foreign.executor.grow(forged)).0, Bad::Foreign);
    assert_eq!(bad(host.executor.grow(Blocked { remedy: Remedy::Wait, ..forged })).0, Bad::Policy);
    assert!(matches!(
        host.executor.grow(Blocked::on(Remedy::Grow, &[Shortfall { need: 2000, ..entry }], &now)),
        Err(Refusal::Blocked(_) | Refusal::Never(_))
    ));
}
