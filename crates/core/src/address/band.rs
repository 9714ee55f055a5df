use ipnet::IpNet;

use super::block::Blocks;

/// The number of addresses in the static band of a range. The band starts at index 1; KEP-3070
/// (ServiceIPStaticSubrange) keeps it for addresses chosen by hand.
///
/// It is 0 for a range of at most 16 addresses; otherwise a sixteenth of the addresses, at least 16 and at most 256.
/// All addresses of the range count, including the network address.
pub fn static_band_len(cidr: IpNet) -> u128 {
    const MIN_LENGTH: u128 = 16;
    const MAX_LENGTH: u128 = 256;
    let addresses = Blocks::addresses(cidr).last_index().saturating_add(1);
    if addresses <= MIN_LENGTH { 0 } else { (addresses / 16).clamp(MIN_LENGTH, MAX_LENGTH) }
}
