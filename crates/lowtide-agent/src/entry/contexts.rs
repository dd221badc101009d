//! The functions that start the agent, and that begin and end contexts and graph captures.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use super::hooks::{caught, hooks};
use crate::control::start;
use crate::driver::codes::SUCCESS;
use crate::memory::{live_contexts, unmanaged};
use crate::sleep::agent;

hooks! {
    quiet cuInit(flags: u32) |real| {
        let code = real(flags);
        if code == SUCCESS {
            caught(start::start);
        } else {
            caught(|| start::say_why_not(code));
        }
        code
    };

    touch [cuCtxCreate cuCtxCreate_v2](context: *mut usize, flags: u32, device: i32) |real| {
        created(context, real(context, flags, device))
    };
    touch cuCtxCreate_v3(context: *mut usize, partition: usize, count: i32, flags: u32, device: i32) |real| {
        created(context, real(context, partition, count, flags, device))
    };
    touch cuCtxCreate_v4(context: *mut usize, how: usize, flags: u32, device: i32) |real| {
        created(context, real(context, how, flags, device))
    };
    quiet [cuCtxDestroy cuCtxDestroy_v2](context: usize) |real| {
        leave(context);
        real(context)
    };
    touch cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) |real| {
        let code = real(context, device);
        if code == SUCCESS && !context.is_null() {
            // SAFETY: the driver has written it.
            live_contexts::retained(device, unsafe { *context });
        }
        code
    };
    quiet [cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2](device: i32) |real| {
        live_contexts::released(device).into_iter().for_each(leave);
        real(device)
    };
    quiet [cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2](device: i32) |real| {
        live_contexts::primary(device).into_iter().for_each(leave);
        real(device)
    };

    touch [cuStreamBeginCapture cuStreamBeginCapture_ptsz](stream: usize) |real| {
        captured(true, real(stream))
    };
    touch [cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz](stream: usize, mode: i32) |real| {
        captured(true, real(stream, mode))
    };
    touch [cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz](
        stream: usize, graph: usize, nodes: usize, edges: usize, count: usize, mode: i32
    ) |real| {
        captured(true, real(stream, graph, nodes, edges, count, mode))
    };
    touch [cuStreamEndCapture cuStreamEndCapture_ptsz](stream: usize, graph: usize) |real| {
        captured(false, real(stream, graph))
    };
}

/// Notes a context, if the driver made one.
fn created(context: *mut usize, code: i32) -> i32 {
    if code == SUCCESS && !context.is_null() {
        // SAFETY: the driver has written it.
        live_contexts::created(unsafe { *context });
    }
    code
}

/// Gives up all that is in a context that is about to be destroyed.
fn leave(context: usize) {
    live_contexts::destroyed(context);
    if let Some(agent) = agent::get() {
        caught(|| agent.leave_context(context));
        unmanaged::forget(context);
    }
}

/// Notes that a capture began or ended. An end is the end of the capture, also where it fails.
fn captured(began: bool, code: i32) -> i32 {
    if (!began || code == SUCCESS)
        && let Some(agent) = agent::get()
    {
        caught(|| {
            agent.memory.capture_changed(began);
            if !agent.memory.is_capturing() {
                agent.imports.captures_ended();
            }
        });
    }
    code
}
