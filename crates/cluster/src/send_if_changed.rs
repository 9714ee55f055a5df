//! Values that are published in a watch channel of tokio.

use tokio::sync::watch;

/// Publishes `new` if it differs from the value of the channel. Receivers are not notified of an equal value.
pub fn send_if_changed<T: PartialEq>(sender: &watch::Sender<T>, new: T) {
    sender.send_if_modified(|known| {
        let differs = *known != new;
        *known = new;
        differs
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn receivers_are_notified_only_of_another_value() {
        let (sender, mut receiver) = watch::channel(1);
        send_if_changed(&sender, 1);
        assert!(!receiver.has_changed().unwrap());
        send_if_changed(&sender, 2);
        assert!(receiver.has_changed().unwrap());
        assert_eq!(*receiver.borrow_and_update(), 2);
    }
}
