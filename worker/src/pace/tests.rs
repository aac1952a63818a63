//! Tests of the bounds, compiled under `#[cfg(test)]` alone.

use super::*;

fn bucket(rate: u64, burst: u64) -> Pace {
    let cost = 1_000_000_000 / rate;
    Pace {
        bucket: Some(Bucket {
            cost,
            most: cost * burst,
            saved: cost * burst,
            at: Instant::now(),
        }),
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_passes_and_then_one_message_comes_at_a_time() {
    let mut pace = bucket(10, 3);
    for _ in 0..3 {
        assert_eq!(pace.wait(), None);
        pace.take();
    }
    assert_eq!(pace.wait(), Some(Duration::from_millis(100)));
    tokio::time::advance(Duration::from_millis(60)).await;
    assert_eq!(pace.wait(), Some(Duration::from_millis(40)));
    tokio::time::advance(Duration::from_millis(40)).await;
    assert_eq!(pace.wait(), None);
    tokio::time::advance(Duration::from_secs(60)).await;
    for _ in 0..3 {
        assert_eq!(pace.wait(), None);
        pace.take();
    }
    assert!(pace.wait().is_some());
}

#[tokio::test(start_paused = true)]
async fn without_a_rate_nothing_waits() {
    let mut pace = Pace { bucket: None };
    pace.take();
    assert_eq!(pace.wait(), None);
}
