//! A trace as a report shows it: live bytes by stream over its events, and the blocks that are live at the peak.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use lowtide_pool::trace::Event;
use serde_json::{Value, json};

/// The most points of the chart: about two for each of its pixels.
const POINTS_MOST: usize = 2000;
/// The most blocks that are shown one by one.
const BLOCKS_MOST: usize = 10_000;

/// Live bytes, by stream.
#[derive(Default)]
struct Live {
    bytes: u64,
    streams: BTreeMap<u64, u64>,
    /// By its number: the size and the stream of each block, and the event that allocated it.
    blocks: HashMap<u32, (u64, u64, usize)>,
}

impl Live {
    fn apply(&mut self, number: usize, event: Event) {
        match event {
            Event::Allocate { block, size, stream } => {
                self.bytes += size.0;
                *self.streams.entry(stream.0).or_default() += size.0;
                self.blocks.insert(block, (size.0, stream.0, number));
            }
            Event::Free { block, .. } => {
                let Some((bytes, stream, _)) = self.blocks.remove(&block) else { return };
                self.bytes -= bytes;
                *self.streams.entry(stream).or_default() -= bytes;
            }
        }
    }

    fn point(&self, at: usize) -> Value {
        let named: BTreeMap<_, _> = self
            .streams
            .iter()
            .map(|(stream, bytes)| (format!("stream {stream}"), bytes))
            .collect();
        json!({ "at": at, "streams": named })
    }
}

/// Returns the history of a trace. Events count from 1.
pub(super) fn of(events: &[Event]) -> Value {
    let every = events.len().div_ceil(POINTS_MOST).max(1);
    // Of each part its highest moment, so that no peak is lost.
    let mut live = Live::default();
    let mut moments = Vec::new();
    for (part, some) in events.chunks(every).enumerate() {
        let heights = some.iter().enumerate().map(|(offset, event)| {
            let number = part * every + offset + 1;
            live.apply(number, *event);
            (live.bytes, Reverse(number))
        });
        moments.extend(heights.max().map(|(bytes, Reverse(number))| (number, bytes)));
    }
    let peak_at = moments.iter().max_by_key(|(number, bytes)| (*bytes, Reverse(*number)));
    let peak_at = peak_at.map_or(0, |(number, _)| *number);
    let (mut live, mut points, mut at_peak) = (Live::default(), Vec::new(), HashMap::new());
    let mut next = moments.iter().peekable();
    for (offset, event) in events.iter().enumerate() {
        let number = offset + 1;
        live.apply(number, *event);
        if next.next_if(|(moment, _)| *moment == number).is_some() {
            points.push(live.point(number));
        }
        if number == peak_at {
            at_peak.clone_from(&live.blocks);
        }
    }
    let freed: HashMap<u32, usize> = (peak_at..events.len())
        .filter_map(|at| match events[at] {
            Event::Free { block, .. } => Some((block, at + 1)),
            Event::Allocate { .. } => None,
        })
        .collect();
    let mut blocks: Vec<_> = at_peak.into_iter().collect();
    blocks.sort_by_key(|&(block, (bytes, ..))| (u64::MAX - bytes, block));
    let rest = blocks.split_off(blocks.len().min(BLOCKS_MOST));
    let rest_bytes: u64 = rest.iter().map(|(_, (bytes, ..))| bytes).sum();
    let shown = blocks.iter().map(|(block, (bytes, stream, from))| {
        let until = freed.get(block);
        json!({ "block": block, "stream": stream, "bytes": bytes, "from": from, "until": until })
    });
    json!({
        "points": points,
        "peak_at": peak_at,
        "blocks": shown.collect::<Vec<_>>(),
        "rest_blocks": rest.len(),
        "rest_bytes": rest_bytes,
    })
}

#[cfg(test)]
mod tests {
    use lowtide_pool::StreamId;
    use lowtide_types::Bytes;

    use super::*;

    #[test]
    fn the_peak_is_a_point_and_its_blocks_add_up_to_it() {
        let count = 9_000;
        let events: Vec<_> = (0..count)
            .map(|block| Event::Allocate {
                block,
                size: Bytes(u64::from(block) + 1),
                stream: StreamId(u64::from(block % 3)),
            })
            .chain((0..count - 1).map(|block| Event::Free { block, stream: StreamId(0) }))
            .collect();
        let history = of(&events);
        assert_eq!(history["peak_at"], count);
        assert!(history["points"].as_array().unwrap().len() <= POINTS_MOST);
        let whole = u64::from(count) * u64::from(count + 1) / 2;
        let sum = |value: &Value| value.as_u64().unwrap();
        let highest = history["points"]
            .as_array()
            .unwrap()
            .iter()
            .map(|point| point["streams"].as_object().unwrap().values().map(sum).sum::<u64>());
        assert_eq!(highest.max(), Some(whole));
        let blocks = history["blocks"].as_array().unwrap();
        assert_eq!(blocks.iter().map(|block| sum(&block["bytes"])).sum::<u64>(), whole);
        assert_eq!(blocks[0]["until"], Value::Null, "the last block is never freed");
        assert_eq!(blocks[1]["until"], 2 * count - 1);
    }
}
