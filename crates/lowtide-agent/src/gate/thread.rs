//! Two words of each thread, in the thread's static block.
//!
//! Rust reaches the thread-locals of a shared library through the loader, which may allocate at a
//! thread's first access; a driver call may come from a place where that would deadlock. These words
//! are at a fixed distance from the thread's own pointer, because a preloaded library is there when the
//! program starts.
#![allow(unsafe_code, reason = "reaches the thread's block in assembly")]

use std::arch::{asm, global_asm};

global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".p2align 3",
    ".type lowtide_agent_words, @object",
    ".size lowtide_agent_words, 8",
    ".hidden lowtide_agent_words",
    ".globl lowtide_agent_words",
    "lowtide_agent_words:",
    ".zero 8",
    ".text",
);

/// What the agent knows of a thread.
#[repr(C)]
pub(crate) struct Words {
    /// The number of the thread's line in the gate, plus one; zero before its first touch.
    pub(crate) line: u32,
    /// The driver calls that the thread is in, one inside the other.
    pub(crate) depth: u32,
}

/// Returns the words of the calling thread. They are zero in a new thread and valid until it ends.
#[inline]
pub(crate) fn words() -> *mut Words {
    let words: *mut Words;
    // SAFETY: computes the address of this thread's copy and reads nothing but the distance, which the
    // loader wrote when the library was loaded.
    unsafe {
        asm!(
            "mov {words}, qword ptr fs:[0]",
            "add {words}, qword ptr [rip + lowtide_agent_words@GOTTPOFF]",
            words = out(reg) words,
            options(nostack, pure, readonly),
        );
    }
    words
}
