//! `ipam release`: releases the addresses that an operator names. It changes files of this node only: the agent gives an empty
//! block or a static address back by itself.

use cnikit_reservations::Reservation;
use cnikit_types::limit;
use ipnetwork::IpNetwork;
use serde_json::json;

use super::{Evidence, NetworkUsage, OfNetwork, Verdict, address_documents, confirm, print_addresses, survey};
use crate::cli::Release;
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::print;

/// How many addresses an error names.
const NAMED: usize = 10;

/// Releases the reservations in a block, or that of one address.
pub(crate) fn release(common: &Common, out: Output, args: &Release) -> Result {
    let survey = || survey(common, &args.filter, &Evidence::from_node(common, args.sight)?);
    let mut networks = survey()?;
    let is_named = |reservation: &Reservation| args.what.contains(reservation.address);
    let mut found = networks.iter().filter(|network| network.reservations().any(|(_, one)| is_named(&one.reservation)));
    let Some(first) = found.next() else {
        let text = format!("no address of {} is reserved on this node", named(args.what));
        return Err(format!("{text}; hint: `cnitool ipam usage` lists the reservations").into());
    };
    if let Some(second) = found.next() {
        let names = (&first.network.store.network, &second.network.store.network);
        let text = format!("{} is reserved in network {} and in network {}", named(args.what), names.0, names.1);
        return Err(format!("{text}; hint: choose one with `--network`").into());
    }
    if !args.force {
        confirm(&mut networks, &survey()?);
        refuse_living(&networks, args.what)?;
    }
    let mut released: Vec<OfNetwork<'_>> = Vec::new();
    for network in &networks {
        let mut chosen: Vec<OfNetwork<'_>> = network.reservations().collect();
        chosen.retain(|(_, one)| is_named(&one.reservation));
        if chosen.is_empty() {
            continue;
        }
        if !args.dry_run {
            let is_chosen = |found: &Reservation| chosen.iter().any(|(_, assessed)| assessed.reservation == *found);
            let freed = network.network.store.reclaim(is_chosen)?;
            chosen.retain(|(_, one)| freed.iter().any(|gone| gone.address == one.reservation.address));
        }
        released.extend(chosen);
    }
    let document = json!({"dryRun": args.dry_run, "freed": address_documents(&released)});
    if !out.json {
        if !released.is_empty() {
            print_addresses(out, &released)?;
        }
        let action = if args.dry_run { "would be released" } else { "released" };
        print(&format!("{} {action}\n", released.len()))?;
    }
    out.finish(document, Vec::new())
}

/// Refuses unless it is proven for each address that no container has it.
fn refuse_living(networks: &[NetworkUsage], what: IpNetwork) -> Result {
    let mut living = Vec::new();
    for (_, assessed) in networks.iter().flat_map(NetworkUsage::reservations) {
        if what.contains(assessed.reservation.address) && assessed.verdict != Verdict::Leaked {
            let (container, ifname) = assessed.owner();
            let address = assessed.reservation.address;
            living.push(format!("{address} of {container}/{ifname}: {}", assessed.why));
        }
    }
    if living.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "it is not proven that no container has these addresses: {}; hint: end the containers. If you know that they are gone, use \
         `--force`",
        limit::first_few(&living, NAMED, ", ")
    )))
}

/// One address, or a block.
fn named(what: IpNetwork) -> String {
    if what.prefix() == if what.is_ipv4() { 32 } else { 128 } { what.ip().to_string() } else { what.to_string() }
}
