//! The functions that start the agent, and that begin and end contexts and graph captures.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use super::hooks::{caught, closed, hooks, opened};
use crate::control::start;
use crate::driver::calls::{current_context, current_device};
use crate::driver::codes::{SUCCESS, UNKNOWN};
use crate::gate;
use crate::memory::allocations::StreamName;
use crate::memory::{live_contexts, unmanaged};
use crate::obstacles::Opened;
use crate::room::Want;
use crate::say::say;
use crate::sleep::{agent, is_exiting};

/// The stream of each thread: `CU_STREAM_PER_THREAD`. Zero may stand for it, too.
const PER_THREAD: usize = 2;

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

    takes(Want::on(device)) [cuCtxCreate cuCtxCreate_v2](context: *mut usize, flags: u32, device: i32) |real| {
        created(context, real(context, flags, device))
    };
    takes(Want::on(device)) cuCtxCreate_v3(context: *mut usize, partition: usize, count: i32, flags: u32, device: i32) |real| {
        created(context, real(context, partition, count, flags, device))
    };
    takes(Want::on(device)) cuCtxCreate_v4(context: *mut usize, how: usize, flags: u32, device: i32) |real| {
        created(context, real(context, how, flags, device))
    };
    quiet [cuCtxDestroy cuCtxDestroy_v2](context: usize) |real| {
        if agent::get().is_some() && live_contexts::is_primary(context) {
            // The driver refuses that.
            return real(context);
        }
        destroy(Some(context), || real(context))
    };
    takes(Want::on(device)) cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) |real| {
        let code = real(context, device);
        if code == SUCCESS && !context.is_null() && agent::get().is_some() {
            // SAFETY: the driver has written it.
            live_contexts::retained(device, unsafe { *context });
        }
        code
    };
    quiet [cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2](device: i32) |real| {
        let last = agent::get().and_then(|_| live_contexts::released(device));
        destroy(last, || real(device))
    };
    quiet [cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2](device: i32) |real| {
        let primary = agent::get().and_then(|_| live_contexts::primary(device));
        destroy(primary, || real(device))
    };

    touch cuCtxEnablePeerAccess(peer: usize, flags: u32) |real| {
        let code = real(peer, flags);
        if code != SUCCESS {
            return code;
        }
        caught(|| let_in(peer)).unwrap_or(Ok(())).map_or_else(|error| error, |()| SUCCESS)
    };
    // Nobody has seen whether its work is found before a sleep.
    takes(Want::on(device)) cuGreenCtxCreate(context: *mut u64, how: usize, device: i32, flags: u32) |real| {
        opened(Opened::GreenContext, context, real(context, how, device, flags))
    };
    quiet cuGreenCtxDestroy(context: u64) |real| {
        closed(Opened::GreenContext, context, real(context))
    };

    touch [cuStreamBeginCapture cuStreamBeginCapture_ptsz](stream: usize) |real| {
        began_capture(stream, real(stream))
    };
    touch [cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz](stream: usize, mode: i32) |real| {
        began_capture(stream, real(stream, mode))
    };
    touch [cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz](
        stream: usize, graph: usize, nodes: usize, edges: usize, count: usize, mode: i32
    ) |real| {
        began_capture(stream, real(stream, graph, nodes, edges, count, mode))
    };
    touch [cuStreamEndCapture cuStreamEndCapture_ptsz](stream: usize, graph: usize) |real| {
        let code = real(stream, graph);
        // It ends here also where that fails.
        ended_capture(stream);
        code
    };
    quiet [cuStreamDestroy cuStreamDestroy_v2](stream: usize) |real| {
        let code = real(stream);
        if code == SUCCESS {
            ended_capture(stream);
        }
        code
    };
}

/// Notes a context, if the driver made one.
fn created(context: *mut usize, code: i32) -> i32 {
    if code == SUCCESS && !context.is_null() && agent::get().is_some() {
        // SAFETY: the driver has written it.
        live_contexts::created(unsafe { *context });
    }
    code
}

/// Lets the current context's device use the memory of another context of the program that can sleep.
fn let_in(peer: usize) -> Result<(), i32> {
    let Some((agent, device)) = agent::get().zip(current_device()) else { return Ok(()) };
    let context = agent.memory.context(&agent.driver, peer).map_err(|_| UNKNOWN)?;
    let all = agent.memory.let_in(&context, device);
    all.and_then(|()| agent.imports.open_to_peers(&context)).map_err(|error| {
        say!("peer access: {error}");
        if let lowtide_device::Error::Driver { code, .. } = error { code } else { UNKNOWN }
    })
}

/// Destroys a context by a call of the driver, after all that is ours in it is given up. Memory moves neither way
/// meanwhile.
fn destroy(context: Option<usize>, call: impl FnOnce() -> i32) -> i32 {
    let Some((agent, context)) = agent::get().zip(context) else { return call() };
    let mut turn = agent.turn();
    let mut awake = None;
    // Virtual memory outlives its context, and what is in it only if it is on the device.
    if gate::is_asleep() && agent.virtual_memory.sum(context).0 > 0 && !is_exiting() {
        drop(turn);
        awake = match gate::enter() {
            Ok(pass) => Some(pass),
            Err(code) => return code,
        };
        turn = agent.turn();
    }
    live_contexts::destroyed(context);
    caught(|| agent.leave_context(context));
    unmanaged::forget(context);
    let code = call();
    drop((turn, awake));
    caught(|| agent.ended_captures(|_, of| of == context));
    code
}

/// Notes a capture, if the driver began it.
fn began_capture(stream: usize, code: i32) -> i32 {
    if code == SUCCESS
        && let Some(agent) = agent::get()
    {
        let context = current_context().unwrap_or_default();
        caught(|| agent.memory.began_capture(name_of(stream), context));
    }
    code
}

/// Notes that a stream captures no more, if it did.
fn ended_capture(stream: usize) {
    if let Some(agent) = agent::get() {
        let name = name_of(stream);
        caught(|| agent.ended_captures(|stream, _| stream == name));
    }
}

/// Returns a name that no other stream has: small numbers stand for a stream of each thread.
fn name_of(stream: usize) -> StreamName {
    let is_of_thread = stream <= PER_THREAD;
    (stream, if is_of_thread { rustix::thread::gettid().as_raw_nonzero().get() } else { 0 })
}
