//! Device accounts: bytes of one device, counted for all executors that share it.

use super::bundle::{StatusCode, code, without_model};
use super::guard::out;
use super::handle;
use crate::capacity::DeviceAccount;

/// What an `ictus_account_t` points to: nothing that C could look at.
#[derive(Debug)]
pub struct OpaqueAccount(());

/// Handle of a device account. NULL is none.
pub type AccountNumber = *mut OpaqueAccount;

/// Makes an account of a device with so many bytes, for executors that are made with it in their options.
///
/// Owner: `*account` is the host's, which releases it with `ictus_account_free`, before or after the executors that count in it.
/// Threads: any. Codes: `ICTUS_REJECT_BAD_STRUCT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_account_create(capacity_bytes: u64, account: *mut AccountNumber) -> StatusCode {
    without_model(|| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let account = unsafe { out(account) }?;
        let number = handle::insert_account(DeviceAccount::new(capacity_bytes));
        account.set(core::ptr::without_provenance_mut(number));
        Ok(())
    })
}

/// Bytes that all executors of the account have claimed, and that they may claim together: the smallest ceiling of a live one.
///
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BAD_STRUCT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_account_level(
    account: AccountNumber,
    claimed_bytes: *mut u64,
    usable_bytes: *mut u64,
) -> StatusCode {
    without_model(|| {
        let object = handle::account(account.addr())?;
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let claimed = unsafe { out(claimed_bytes) }?;
        // SAFETY: as above.
        let usable = unsafe { out(usable_bytes) }?;
        claimed.set(object.claimed());
        usable.set(object.usable());
        Ok(())
    })
}

/// Releases an account. Executors that count in it go on to do so.
///
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (NULL, or released before).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_account_free(account: AccountNumber) -> StatusCode {
    code(handle::remove_account(account.addr()).map(drop))
}
