//! One start of one server. A replay position moves only forward within an incarnation, so a
//! sample of it stays true for as long as the incarnation is the same.

use std::ffi::CString;
use std::sync::OnceLock;

use pgrx::prelude::*;

static NEXT_HOOK: OnceLock<pg_sys::shmem_startup_hook_type> = OnceLock::new();

/// Makes a new incarnation at every start of shared memory: at server start, and when the
/// postmaster makes it again after a crash of a backend.
pub(crate) fn install() {
    // SAFETY: the postmaster runs _PG_init alone, before any other thread or process exists.
    unsafe {
        NEXT_HOOK.get_or_init(|| pg_sys::shmem_startup_hook);
        pg_sys::shmem_startup_hook = Some(on_shmem_startup);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_shmem_startup() {
    if let Some(Some(next)) = NEXT_HOOK.get() {
        // SAFETY: the hook that was installed before ours, of the same type.
        unsafe { next() };
    }
    let mut random = [0u8; 16];
    // SAFETY: the buffer is as long as said.
    let filled = unsafe { pg_sys::pg_strong_random(random.as_mut_ptr().cast(), random.len()) };
    if !filled {
        error!("no random bytes for pgdog.incarnation");
    }
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let value = CString::new(text).expect("hexadecimal digits have no NUL");
    // SAFETY: both strings outlive the call, which copies them. Backends inherit the value by fork.
    unsafe {
        pg_sys::SetConfigOption(
            c"pgdog.incarnation".as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_INTERNAL,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}
