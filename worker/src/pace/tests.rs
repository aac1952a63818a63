//! Tests of the bounds, compiled under `#[cfg(test)]` alone.

use memory_budget::Limit;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_burst_passes_and_then_one_message_comes_at_a_time() {
    let messages = Budget::new("messages", Limit::At(3));
    let mut pace = Pace::new(Some(10), &messages);
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
    let counted = messages.snapshot();
    assert_eq!((counted.current, counted.peak, counted.refused), (3, 3, 3));
    drop(pace);
    assert_eq!(messages.current(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_rate_nothing_waits() {
    let messages = Budget::new("messages", Limit::Unlimited);
    let mut pace = Pace::new(None, &messages);
    pace.take();
    assert_eq!((pace.wait(), messages.current()), (None, 0));
}
