//! The table of experiments: the attacker, the attack, the tests, and the plugins.
//!
//! A new plugin is a new column of [`MATRIX`] with a mark in each row. A test fails until every row has one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cnikit_testkit::campaign;
use cnikit_testkit::need::Need;
use cnikit_tests::NAMES;

/// The attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Actor {
    /// Another user of the node: uid 65534, no capability.
    OtherUser,
    /// A process in a container, with `CAP_NET_RAW` only.
    NetRaw,
    /// A process in a container, with `CAP_NET_ADMIN` in its namespace.
    NetAdmin,
    /// A party that chooses container ids and names, `runtimeConfig`, `CNI_ARGS`, and annotations that become `args.cni`.
    Tenant,
    /// The contents of a container's network namespace.
    Namespace,
    /// A program that answers at the address of the system's D-Bus.
    Bus,
    /// An IPAM plugin, or another program that a plugin starts.
    Program,
    /// A host outside, by packets.
    Outside,
    /// The administrator, by mistake.
    Administrator,
    /// Size, and resources that are used up.
    Size,
}

use Actor::{Administrator, Bus, Namespace, NetAdmin, NetRaw, OtherUser, Outside, Program, Size, Tenant};

/// One experiment.
pub(crate) struct Row {
    pub(crate) number: u8,
    by: &'static [Actor],
    experiment: &'static str,
    cve: Option<&'static str>,
    held: By,
}

/// Tests of this suite, `module::function`; of another program, `program/function` or `program/module::function`. `agent` is
/// that of `crates/agent` with etcd.
struct By(&'static [&'static str]);

const fn row(number: u8, by: &'static [Actor], experiment: &'static str, held: By) -> Row {
    Row { number, by, experiment, cve: None, held }
}

const fn cve(name: &'static str, row: Row) -> Row {
    Row { cve: Some(name), ..row }
}

pub(crate) const ROWS: [Row; 64] = [
    row(
        1,
        &[OtherUser],
        "hold a shared lock on the host's network namespace file",
        By(&[
            "locks::locks_of_another_user_delay_no_call",
            "locks::no_other_user_can_open_a_lock_file",
            "locks::with_a_read_only_run_the_lock_file_is_elsewhere_and_serialises",
            "locks::without_a_lock_file_another_user_delays_a_call_by_seconds_only",
            "locks::a_directory_that_another_user_made_or_may_write_is_not_believed",
            "locks::an_older_release_waits_for_this_one_and_is_not_waited_for",
            "locks::gc_that_cannot_have_the_lock_leaves_link_address_and_rules",
            "locks::an_installation_waits_for_no_other_user",
            "locks::a_lock_of_a_container_on_its_own_namespace_delays_no_call",
            "ring/vrf::a_lock_of_the_container_on_its_own_namespace_delays_no_call",
        ]),
    ),
    cve(
        "CVE-2020-8558",
        row(
            2,
            &[NetAdmin],
            "reach the host's 127.0.0.1 after a port is published",
            By(&[
                "host_loopback::a_container_does_not_reach_the_hosts_loopback_by_a_published_port",
                "host_loopback::route_localnet_set_by_another_program_stays",
                "host_loopback::the_last_port_of_a_link_takes_guard_and_setting_away",
            ]),
        ),
    ),
    cve(
        "CVE-2020-8558",
        row(
            3,
            &[NetRaw],
            "the same with one raw frame",
            By(&[
                "host_loopback::a_container_does_not_reach_the_hosts_loopback_by_a_published_port",
                "host_loopback::a_port_that_the_upstream_plugin_published_keeps_the_setting",
                "host_loopback::a_container_does_not_reach_the_hosts_loopback_by_ipv6",
            ]),
        ),
    ),
    row(
        4,
        &[NetRaw],
        "frames to 01:80:c2:00:00:0x with the victim's MAC, macspoofchk on",
        By(&[
            "spoofing::link_local_groups::a_victim_receives_its_traffic_on_a_created_or_adopted_bridge",
            "spoofing::link_local_groups::an_adopted_bridge_is_left_alone_without_macspoofchk",
            "spoofing::link_local_groups::without_the_option_the_attacker_gets_all_of_it",
        ]),
    ),
    row(
        5,
        &[NetRaw],
        "plain, 802.1Q and 802.1ad frames with the victim's MAC, macspoofchk on",
        By(&["spoofing::frames_under_anothers_mac_are_dropped_tagged_or_not"]),
    ),
    row(
        6,
        &[NetAdmin],
        "change the container's MAC, macspoofchk on",
        By(&["spoof/traffic::a_container_that_takes_another_mac_is_silenced_until_it_takes_its_own_again"]),
    ),
    row(
        7,
        &[NetAdmin],
        "change the container's MAC, then have RESTORE called with an old result",
        By(&[
            "spoofing::restore::restore_lets_no_mac_in_that_the_container_gave_itself",
            "spoofing::restore::restore_takes_a_requested_mac_where_the_result_records_none",
            "spoofing::restore::restore_takes_the_mac_that_a_later_plugin_has_recorded",
        ]),
    ),
    row(
        8,
        &[NetRaw],
        "ARP and ND spoofing of the gateway",
        By(&[
            "ip_spoofing::gateway::arp_cannot_tell_the_victim_that_the_attacker_is_the_gateway",
            "ip_spoofing::gateway::neighbour_discovery_cannot_either",
            "ip_spoofing::packets_under_anothers_address_are_dropped_and_those_of_other_protocols",
            "ip_spoofing::a_container_cannot_pose_as_a_router_or_dhcp_server",
            "ip_spoofing::a_container_cannot_pose_as_a_multicast_router",
            "ip_spoofing::routed::the_host_passes_nothing_on_that_has_anothers_address",
            "ip_spoofing::a_port_with_the_key_gets_no_redirects",
            "ip_spoofing::usual_traffic_passes_with_macspoofchk_and_address_detection",
            "ip_spoofing::an_attachment_leaves_no_trace_and_incomplete_dels_succeed",
            "ip_spoofing::a_fault_before_any_step_leaves_nothing",
            "ip_spoofing::check_names_each_drift",
            "ip_spoofing::restore_restores_flushed_rules_and_gc_removes_stale_ones",
            "ip_spoofing::the_container_cannot_send_before_its_rules_exist",
            "ip_spoofing::without_addresses_the_key_is_refused",
        ]),
    ),
    cve(
        "CVE-2020-10749",
        row(
            9,
            &[NetRaw],
            "router advertisements to the host and to neighbours",
            By(&[
                "advertisements/during_a_hundred_ipv6_adds_no_advertisement_is_accepted",
                "advertisements/on_an_adopted_bridge_a_hundred_adds_accept_no_advertisement",
                "advertisements/the_host_hears_no_advertisement_of_its_own_containers",
                "macvlan/router_advertisements_are_those_of_the_wire_and_can_be_refused",
            ]),
        ),
    ),
    cve(
        "CVE-2021-20206",
        row(
            10,
            &[Administrator, Tenant],
            "a plugin's type is a path, an option, has a NUL",
            By(&[
                "names::a_type_is_a_name_and_never_a_path_cve_2021_20206",
                "names::a_chain_names_plugins_and_no_paths_cve_2021_20206",
                "bad_input/a_type_with_a_path_in_it_is_never_run",
            ]),
        ),
    ),
    row(
        11,
        &[Administrator],
        "flannel delegates to `../evil`, and to itself",
        By(&["names::flannel_delegates_to_no_path_and_not_to_itself"]),
    ),
    row(
        12,
        &[Tenant],
        "network name or container id with `../`, newline, `$()`, non-ASCII, also on DEL",
        By(&["names::invalid_network_names_and_ids_are_refused_by_every_plugin"]),
    ),
    row(
        13,
        &[Tenant],
        "CNI_IFNAME `eth%d`, `..`, ESC, newline, 16 bytes, `all`, `default`, `lo`",
        By(&[
            "names::an_invalid_interface_name_is_refused_by_every_plugin",
            "names::an_interface_is_not_called_all_default_or_lo",
        ]),
    ),
    row(
        14,
        &[Tenant],
        "CNI_IFNAME with quotes, options, wildcards, non-UTF-8 bytes, and iptables rules",
        By(&["names::an_interface_of_any_bytes_gets_its_rules_of_iptables_and_loses_them"]),
    ),
    row(
        15,
        &[Tenant],
        "a container id of 4,001 bytes",
        By(&[
            "names::an_id_of_4001_bytes_is_served_and_leaves_nothing",
            "dhcp/long_ids_and_hostile_args_are_served_and_leave_nothing",
        ]),
    ),
    row(
        16,
        &[Tenant, Administrator],
        "rules by way of protocol, hostIP, externalSetMarkChain, the admin chain, conditions",
        By(&[
            "names::no_word_of_a_configuration_becomes_a_rule_of_its_own",
            "conditions::no_condition_names_a_program_that_is_started",
            "conditions::nothing_that_is_refused_is_a_match",
            "conditions::every_option_of_every_match_is_taken",
        ]),
    ),
    row(
        17,
        &[OtherUser, Administrator],
        "relative, hostile and empty entries of CNI_PATH",
        By(&[
            "calls::an_empty_entry_of_cni_path_is_not_the_working_directory",
            "programs::a_relative_directory_of_plugins_that_another_user_can_change_is_not_used",
            "programs::a_relative_plugin_directory_behind_a_replaceable_link_is_not_used",
            "programs::cnitool_makes_relative_directories_of_plugins_absolute",
            "programs::world_writable_plugins_are_reported_or_refused_by_node_policy",
        ]),
    ),
    row(
        18,
        &[OtherUser, Administrator],
        "a relative PATH where iptables is looked for",
        By(&[
            "calls::a_relative_path_of_programs_is_not_searched",
            "programs::relative_entries_of_path_are_ignored_for_iptables",
        ]),
    ),
    row(
        19,
        &[Program],
        "descriptors that iptables, a foreign IPAM plugin, a delegate inherit",
        By(&["calls::a_program_that_a_plugin_starts_inherits_stdin_stdout_and_stderr_alone"]),
    ),
    row(
        20,
        &[Namespace],
        "system calls: namespaces entered, mounts, descriptors without close-on-exec",
        By(&[
            "calls::a_call_enters_network_namespaces_alone_and_all_its_descriptors_are_closed_on_exec",
            "dhcp_daemon/the_daemon_enters_network_namespaces_alone_and_all_its_descriptors_are_closed_on_exec",
        ]),
    ),
    row(
        21,
        &[Tenant],
        "tuning: `kernel.core_pattern` in five spellings",
        By(&[
            "calls::tuning_takes_no_name_of_a_setting_that_leads_out_of_net",
            "tuning/everything_is_validated_before_the_first_write",
        ]),
    ),
    row(
        22,
        &[Tenant],
        "tuning: settings of the whole machine below net",
        By(&["calls::tuning_sets_nothing_of_the_whole_machine"]),
    ),
    row(
        23,
        &[Tenant, Administrator],
        "CNI_NETNS: a file, FIFO, device, mount namespace, the host's own, gone",
        By(&["calls::cni_netns_is_a_network_namespace_and_not_the_hosts_own"]),
    ),
    row(
        24,
        &[NetAdmin, Namespace],
        "a nested veth with the victim's interface indexes; CHECK, RESTORE, DEL",
        By(&["namespaces::a_nested_pair_with_the_victims_indexes_does_no_harm"]),
    ),
    row(
        25,
        &[NetAdmin, Namespace],
        "eth0 renamed, moved, replaced; another attachment's tag as alias",
        By(&[
            "namespaces::an_interface_renamed_replaced_or_with_a_copied_tag_does_no_harm",
            "dhcp_daemon/an_interface_that_was_renamed_or_has_another_mac_keeps_its_lease",
        ]),
    ),
    row(
        26,
        &[NetAdmin, Namespace],
        "ESC and non-UTF-8 bytes in names, aliases, alternative names",
        By(&[
            "namespaces::names_of_links_may_be_any_bytes",
            "dhcp_daemon/a_name_of_any_bytes_is_printable_in_the_log_and_in_check",
        ]),
    ),
    row(
        27,
        &[NetAdmin, Size],
        "1,200 links, or churn, in the namespace",
        By(&["namespaces::twelve_hundred_links_in_a_namespace_delay_del_little"]),
    ),
    row(
        28,
        &[Administrator],
        "DEL is told another container's namespace",
        By(&[
            "namespaces::a_del_with_the_victims_namespace_changes_nothing_of_it",
            "foreign_objects/del_that_is_given_another_containers_namespace_leaves_that_one_running",
        ]),
    ),
    cve(
        "CVE-2025-67499",
        row(
            29,
            &[Tenant],
            "forwarded traffic to a published port's number is not intercepted, both backends",
            By(&["portmap/connections_that_are_not_to_the_host_go_where_they_were_meant_to"]),
        ),
    ),
    row(
        30,
        &[Outside, NetRaw],
        "a port published on 127.0.0.1 is asked for from outside",
        By(&["traffic::a_port_published_on_127_0_0_1_is_not_reached_from_outside"]),
    ),
    cve(
        "CVE-2019-9946",
        row(
            31,
            &[Tenant],
            "a host port takes precedence over Kubernetes' services",
            By(&[
                "traffic::a_host_port_takes_nothing_from_a_service_of_kubernetes_cve_2019_9946",
                "traffic::with_nftables_the_chains_made_last_run_first_as_upstream_cve_2019_9946",
            ]),
        ),
    ),
    row(
        32,
        &[Tenant],
        "a second container takes a host port",
        By(&[
            "portmap/a_port_of_another_container_is_refused_or_stays_there",
            "portmap/a_port_of_another_container_by_the_other_backend_is_refused",
        ]),
    ),
    row(
        33,
        &[Tenant],
        "a requested MAC is a group's, or zero",
        By(&["requests::a_requested_mac_that_is_multicast_or_zero_is_refused"]),
    ),
    row(
        34,
        &[Tenant],
        "a requested MAC is a neighbour's, or the bridge's",
        By(&[
            "tenant::the_macs_of_the_bridge_and_of_its_ports_are_given_to_no_container",
            "tenant::the_mac_of_a_running_container_is_given_to_no_other",
            "tenant::a_mac_changed_inside_neither_frees_it_nor_takes_another",
            "tenant::the_mac_of_a_container_of_the_upstream_plugin_is_found_too",
            "tenant::a_container_that_restarts_with_its_fixed_mac_is_served",
            "tenant::one_of_many_concurrent_requests_for_one_mac_gets_it",
            "tenant::tuning_refuses_a_mac_that_is_in_use_on_the_bridge",
            "tenant::the_mac_that_tuning_gave_a_container_is_given_to_no_other",
            "tenant::tuning_of_another_network_leaves_the_ports_alias_alone",
            "tenant::tuning_that_cannot_write_its_result_gives_the_ports_alias_back",
            "tenant::tuning_compares_no_mac_where_the_host_end_is_no_port_of_a_bridge",
            "tenant::at_most_one_of_many_concurrent_tunings_to_one_mac_succeeds",
            "tenant::on_one_master_the_kernel_refuses_a_mac_that_a_macvlan_or_the_master_has",
        ]),
    ),
    row(
        35,
        &[Tenant],
        "a requested address by host-local is the gateway, broadcast, taken, foreign",
        By(&["requests::a_requested_address_of_host_local_is_free_and_in_its_range"]),
    ),
    row(
        36,
        &[Tenant],
        "a requested address by static with a foreign prefix, or the gateway's own",
        By(&[
            "tenant::a_prefix_that_the_configuration_does_not_name_never_becomes_a_route_of_the_host",
            "tenant::ptp_gives_the_host_no_route_to_an_address_that_the_configuration_does_not_name",
            "tenant::ranges_of_the_runtime_count_where_the_network_leaves_them_to_it",
            "tenant::the_gateway_of_a_bridge_is_given_to_no_container",
            "tenant::an_address_that_the_operator_gave_to_a_bridge_is_given_to_no_container",
            "tenant::the_gateway_of_ptp_is_given_to_no_container",
            "tenant::an_address_of_a_subnet_that_the_configuration_names_is_given",
            "tenant::host_local_gives_what_is_requested_in_its_ranges",
            "tenant::a_link_on_which_the_host_gets_nothing_takes_any_prefix_unless_the_operator_bounds_it",
            "tenant::on_a_master_host_and_container_may_have_one_address",
        ]),
    ),
    row(
        37,
        &[Tenant],
        "hostile K8S_* args, 100 kB of args",
        By(&[
            "names::hostile_args_of_kubernetes_and_very_many_change_nothing",
            "dhcp/long_ids_and_hostile_args_are_served_and_leave_nothing",
        ]),
    ),
    row(
        38,
        &[Tenant, Size],
        "17 MB of stdin, deep JSON, 1e999999999, duplicate keys, bad UTF-8",
        By(&["calls::no_input_makes_a_plugin_panic_or_print_more_than_one_document"]),
    ),
    row(
        39,
        &[Size],
        "150,000 addresses in prevResult",
        By(&["calls::a_hundred_and_fifty_thousand_addresses_in_prev_result_are_fast"]),
    ),
    row(
        40,
        &[Size],
        "a full disk at ADD and DEL",
        By(&[
            "state::on_a_full_disk_an_add_is_undone_and_a_del_works",
            "cache/a_full_disk_refuses_add_early_and_one_that_fills_loses_nothing",
            "dhcp_daemon/on_a_full_disk_an_order_fails_and_its_lease_is_given_back",
        ]),
    ),
    row(
        41,
        &[OtherUser],
        "a FIFO or symbolic link as log, lock, cursor",
        By(&[
            "files::a_log_is_a_regular_file_of_ours_or_stderr_gets_the_lines_and_the_reason",
            "files::no_fifo_and_no_link_in_a_data_directory_is_opened",
            "ring/vrf::a_spoiled_file_is_not_opened",
            "files::a_lock_of_the_upstream_host_local_is_closed_to_other_users",
            "files::no_file_that_a_configuration_names_is_waited_for",
            "files::a_cache_that_another_user_may_have_filled_is_not_used_by_scripts",
        ]),
    ),
    row(
        42,
        &[OtherUser],
        "umask 0",
        By(&[
            "files::nothing_is_open_to_other_users_under_any_umask",
            "state::under_umask_0_other_users_cannot_access_stored_files",
            "dhcp_daemon/under_umask_0_no_other_user_can_read_or_write_what_the_daemon_makes",
        ]),
    ),
    row(
        43,
        &[OtherUser],
        "a kept result is a symbolic link to another file, or a FIFO",
        By(&["state::a_cache_entry_that_is_a_link_or_a_fifo_is_not_followed"]),
    ),
    row(
        44,
        &[Bus],
        "a D-Bus that is silent, floods, lies of lengths, sends signals without end, cuts off",
        By(&[
            "dbus::a_hostile_bus_costs_a_few_seconds_and_the_rules_are_there",
            "firewall/an_unusable_bus_blocks_no_check_or_del_that_does_not_need_it",
        ]),
    ),
    row(
        45,
        &[Administrator, OtherUser],
        "a FIFO in net.d; ESC in an error",
        By(&[
            "conflists/a_bad_file_is_reported_with_its_position_and_hides_no_good_one",
            "programs::nothing_of_plugins_and_namespaces_is_obeyed_by_a_terminal",
            "programs::nothing_of_a_delegated_plugins_log_is_obeyed_by_a_terminal",
        ]),
    ),
    row(
        46,
        &[OtherUser],
        "a plugin run as uid 65534",
        By(&["calls::a_plugin_that_another_user_runs_is_refused_by_the_kernel_and_changes_nothing"]),
    ),
    cve(
        "CVE-2021-25737",
        row(
            47,
            &[Tenant],
            "a published port of a container that requested 127.0.0.1, another address of the host's own, or 169.254.169.254",
            By(&[
                "host_loopback::no_port_leads_to_an_address_of_the_hosts_own_or_to_one_that_no_container_has",
                "host_loopback::a_restore_of_many_makes_no_port_lead_to_an_address_of_the_hosts_own",
            ]),
        ),
    ),
    cve(
        "CVE-2020-8558",
        row(
            48,
            &[NetRaw],
            "reach the host's 127.0.0.1 by a VLAN device or a macvlan of the host's upon the bridge, with br_netfilter",
            By(&["host_loopback::a_link_upon_a_bridge_is_guarded_where_packets_enter_the_bridge"]),
        ),
    ),
    row(
        49,
        &[Tenant],
        "request an address under a key that only Go's decoder takes for `ips`: with a long s",
        By(&["tenant::a_request_in_any_spelling_that_an_ipam_plugin_of_upstream_understands_is_bounded"]),
    ),
    row(
        50,
        &[NetAdmin],
        "rename the interface, or give its name to that of another network, then have RESTORE called: whose port is guarded",
        By(&["spoofing::restore_guards_the_port_of_an_interface_that_the_container_renamed"]),
    ),
    row(
        51,
        &[OtherUser, Administrator],
        "LD_PRELOAD, XTABLES_LIBDIR and others in the environment of a call",
        By(&[
            "programs::iptables_inherits_only_path_and_its_lock_file_from_the_caller",
            "programs::a_delegated_plugin_gets_the_callers_environment_without_ld_preload_and_ld_audit",
        ]),
    ),
    row(
        52,
        &[Tenant],
        "annotations that become args.cni, where the node shuts them out",
        By(&[
            "programs::the_node_policy_ignores_args_of_tenants",
            "programs::only_root_sets_the_policy_of_the_node",
            "programs::the_policy_of_the_hosts_root_counts_in_a_user_namespace",
            "programs::a_policy_that_cannot_be_used_fails_add_and_never_del",
            "programs::a_node_policy_behind_a_link_that_users_can_replace_is_refused",
            "programs::a_node_without_a_policy_pays_one_open",
        ]),
    ),
    row(
        53,
        &[Tenant, Size],
        "65,535 port mappings, long lists and texts, stdin that stays open",
        By(&[
            "size::nftables_serves_as_many_ports_as_are_allowed",
            "size::more_ports_are_refused_at_once_and_nothing_is_made",
            "size::ports_of_many_networks_are_refused_where_their_rules_would_be_too_many",
            "size::the_first_of_many_differences_are_named_and_the_rest_counted",
            "size::an_error_is_short_however_long_the_input_is",
            "size::all_ports_of_another_container_are_refused_in_bounded_time",
            "size::any_input_of_16_megabytes_is_answered_in_bounded_time",
            "size::more_values_than_are_served_are_refused_at_once_by_every_plugin",
            "size::as_many_addresses_and_routes_as_are_served_are_answered_in_bounded_time",
            "size::as_many_reservations_as_an_older_version_made_are_freed_in_bounded_time",
            "size::one_of_two_containers_with_the_most_ports_is_removed_in_bounded_time",
            "size::cnitool_answers_in_bounded_time_whatever_is_in_files_and_results",
            "size::iptables_serves_as_many_ports_as_are_allowed",
            "size::many_sets_of_ranges_are_refused_at_once",
            "size::a_restore_of_many_large_configurations_is_refused",
            "size::no_lock_is_held_while_input_is_read",
        ]),
    ),
    row(
        54,
        &[Program],
        "what a plugin that was taken over may do: capabilities, addresses of code",
        By(&[
            "programs::three_capabilities_are_all_that_plugins_need_with_nftables",
            "programs::installed_binaries_are_static_and_position_independent",
        ]),
    ),
    row(
        55,
        &[Tenant],
        "ask for any rate and burst by an annotation",
        By(&[
            "bandwidth/rates_of_every_size_are_served_or_refused",
            "bandwidth/what_is_not_a_number_of_bits_is_refused_before_anything_is_made",
            "bandwidth/a_burst_smaller_than_a_frame_lets_frames_pass",
        ]),
    ),
    row(
        56,
        &[OtherUser],
        "as the owner of a TAP device change its flags, give it away, remove it, or hold a queue of it open; as no owner attach to it",
        By(&["ring/tap::what_the_owner_does_is_reported_and_stops_no_del", "ring/tap::only_owner_and_group_attach"]),
    ),
    row(
        57,
        &[Outside, NetRaw],
        "as a DHCP server, without being asked: garbage, wrong transaction ids and hardware addresses, 1,500 options, floods; asked, name any router",
        By(&[
            "dhcp_daemon/a_rogue_server_keeps_no_container_from_its_lease",
            "dhcp6/a_rogue_server_of_ipv6_keeps_no_container_from_its_lease_and_writes_nowhere_else",
            "dhcp/a_server_gives_the_host_no_address",
        ]),
    ),
    row(
        58,
        &[OtherUser],
        "call the DHCP daemon, send it what is no request, be the program at its socket",
        By(&[
            "dhcp_daemon/only_root_is_served_and_another_program_on_the_socket_is_named",
            "dhcp_daemon/requests_that_are_none_are_refused_and_harm_nothing",
        ]),
    ),
    row(
        59,
        &[NetAdmin],
        "rename, move on, re-tag, give away, delete or replace a device of the host, or put a link of the same name in its place",
        By(&[
            "host_device/whatever_the_container_did_to_it_the_host_has_it_back_as_it_was",
            "host_device/a_link_that_the_container_put_in_its_place_is_not_taken",
            "host_device/a_device_that_was_moved_on_does_not_make_del_fail",
            "host_device/a_repeated_del_takes_no_link_that_the_container_made",
            "ring/host_device::whatever_the_container_did_the_host_has_its_card_back",
            "ring/host_device::a_card_that_was_moved_on_comes_back_when_that_namespace_ends",
        ]),
    ),
    row(
        60,
        &[NetAdmin, Namespace],
        "tables, priorities and VRFs of other programs where those of a plugin would be",
        By(&[
            "sbr/tables_and_priorities_of_other_programs_are_neither_taken_nor_removed",
            "sbr/what_another_program_has_changed_since_stays",
            "ring/vrf::a_table_that_something_uses_is_refused_by_name",
            "ring/vrf::what_another_program_made_stays",
        ]),
    ),
    row(
        61,
        &[Administrator],
        "one dataDir for several plugins of a chain",
        By(&["host_device/a_tuned_device_is_given_back_as_the_host_had_it"]),
    ),
    row(
        62,
        &[OtherUser],
        "call the agent of pool, send it what is no request, be the program at its socket",
        By(&[
            "pool/a_process_of_another_user_is_no_agent_and_no_plugin",
            "pool/an_agent_that_is_slow_dies_or_talks_nonsense_costs_the_timeout_at_most",
        ]),
    ),
    row(
        63,
        &[Tenant],
        "choose a pool by args.cni.pool, which an annotation may be, that is neither the namespace's nor allowed",
        By(&[
            "pool/the_pool_is_that_of_the_namespace_and_args_choose_only_what_is_allowed",
            "pool/status_needs_no_pool_if_each_namespace_has_one",
        ]),
    ),
    row(
        64,
        &[Tenant],
        "take the address of another pod by args.cni.sticky; names that are paths, keys of the engine, or long",
        By(&[
            "pool/a_pods_own_name_counts_and_none_that_its_tenant_writes",
            "agent/sticky::a_name_that_is_a_path_or_a_key_is_refused_and_nothing_is_written",
            "agent/claims::a_record_that_names_a_path_makes_no_file",
        ]),
    ),
];

/// The plugins of each row: `x`, or `-` with the reason at the end of the line. A row that is marked throughout concerns every
/// plugin, and its tests run for all of them; `tool` instead of marks means cnitool and libcni only.
const MATRIX: &str = "
row bandwidth bridge dhcp dummy firewall flannel host-device host-local ipvlan loopback macvlan pool portmap ptp sbr static tap tuning vlan vrf
 1  - x - - x x x - x - - - x x x - - - - x  locks are taken where iptables' rules, firewalld's sources, ipvlan's addresses, the host's devices or a container's tables are changed
 2  - - - - - - - - - - - - x - - - - - - -  no other has a link with route_localnet
 3  - - - - - - - - - - - - x - - - - - - -  no other has a link with route_localnet
 4  - x - - - x - - - - - - - - - - - - - -  macspoofchk is a key of bridge, which flannel delegates to
 5  - x - - - x - - - - - - - - - - - - - -  macspoofchk is a key of bridge, which flannel delegates to
 6  - x - - - x - - - - - - - - - - - - - -  macspoofchk is a key of bridge, which flannel delegates to
 7  - x - - - x - - - - - - - - - - - - - -  macspoofchk is a key of bridge, which flannel delegates to
 8  - x - - - x - - - - - - - x - - - - - -  ipspoofchk is a key of bridge and ptp: others have no end on the host that could be checked
 9  - x - x - x x - x - x - - x - - x - x -  the others make no link
10  - x - x - x x - x - x - - x - - x - x -  the others start no plugin
11  - - - - - x - - - - - - - - - - - - - -  no other delegates
12  x x x x x x x x x x x x x x x x x x x x
13  x x x x x x x x x x x x x x x x x x x x
14  - x - - x - - - - - - - x x - - - - - -  the others write no rules of iptables
15  x x - x x x x x x x x x x x x x x x x x  the lease of dhcp is checked behind bridge: dhcp.rs
16  - x - - x - - - - - - - x x - - - - - -  the others write no rules
17  - x - x - x x - x - x - - x - - x - x -  the others start no plugin
18  - x - - x - - - - - - - x x - - - - - -  the others start no program
19  - x - x x x x - x - x - x x - - - - x -  the others start no program
20  x x - x x x x x x x x x x x x x x x x x  dhcp enters a namespace only with `v6` and `slaac`: that of its ADD; else its daemon does
21  - - - - - - - - - - - - - - - - - x - -  no other takes names of settings
22  - - - - - - - - - - - - - - - - - x - -  no other takes names of settings
23  x x x x x x x - x x x - x x x - x x x x  host-local, pool and static enter no namespace
24  x x - - x x x - - - - - x x x - - x - x  they pair no ends by index: dummy, ipvlan, macvlan, tap and vlan have none on the host, the others make none
25  x x - x x x x - x - x - x x x - x x x x  loopback's link cannot be renamed or moved; host-local, pool and static look at none; the lease of dhcp is checked with its daemon: dhcp_daemon.rs
26  x x - x x x x - x - x - x x x - x x x x  loopback's link has one name; host-local, pool and static look at no link; the lease of dhcp is checked with its daemon: dhcp_daemon.rs
27  - x - x - - x - x - x - - - x - x - x x  the others list no links of the container; flannel's delegate is bridge, and ptp's veth is bridge's
28  x x - x x x x - x - x - x x x - x x x x  loopback is told by its namespace alone which one is meant; dhcp, host-local, pool and static look at none
29  - - - - - - - - - - - - x - - - - - - -  no other publishes ports
30  - - - - - - - - - - - - x - - - - - - -  no other publishes ports
31  - - - - - - - - - - - - x - - - - - - -  no other publishes ports
32  - - - - - - - - - - - - x - - - - - - -  no other publishes ports
33  - x - - - - - - - - x - - - - - x x - -  the others take no MAC
34  - x - - - - - - - - - - - - - - - x - -  the others give no container on a bridge a MAC
35  - x - x - - x x x - x - - x - - x - x -  the others ask host-local for no address; those of pool are in tests/pool.rs
36  - x - - - x - - - - - - - x - - - - - -  the others give the host no address and no route
37  x x - x x x x x x x x x x x x x x x x x  the lease of dhcp is checked behind bridge: dhcp.rs
38  x x x x x x x x x x x x x x x x x x x x
39  x x x x x x x x x x x x x x x x x x x x
40  - x - x - x x x x - x x - x x - x x x x  the others keep no file, or it is the daemon's
41  x x x x x x x x x x x x x x x x x x x x
42  - x - x - x x x x - x x - x x - x x x x  the others keep no file, or it is the daemon's
43  tool  what is kept of a result is the runtime's
44  - - - - x - - - - - - - - - - - - - - -  no other speaks with a bus
45  tool  plugins read no net.d
46  x x x x x x x x x x x x x x x x x x x x
47  - - - - - - - - - - - - x - - - - - - -  no other publishes ports
48  - - - - - - - - - - - - x - - - - - - -  no other has a link with route_localnet
49  - x - - - x - - - - - - - x - - - - - -  the others ask an IPAM plugin for nothing that the host gets
50  - x - - - x - - - - - - - x - - - - - -  the spoof checks are keys of bridge and ptp, flannel delegates to bridge
51  - x - x x x x x x - x x x x x - x x x x  dhcp, loopback and static start nothing
52  - x - - - - - x - - x x - - - x x x - -  the others know no args
53  x x x x x x x x x x x x x x x x x x x x
54  x x x x x x x x x x x x x x x x x x x x
55  x - - - - - - - - - - - - - - - - - - -  no other takes rates
56  - - - - - - - - - - - - - - - - x - - -  no other makes a device with an owner
57  - x x - - - - - - - - - - - - - - - - -  no other listens to a server of the network, or gives the host what it chose
58  - - x - - - - - - - - - - - - - - - - -  no other has a daemon
59  - - - - - - x - - - - - - - - - - - - -  no other moves a device of the host
60  - - - - - - - - - - - - - - x - - - - x  no other makes routing tables
61  - - - - - - x - - - - - - - x - - x - -  vrf names its file as sbr does; the others have no such key, or are not in one chain with these
62  - - - - - - - - - - - x - - - - - - - -  no other asks an agent; the daemon of dhcp has a row of its own
63  - - - - - - - - - - - x - - - - - - - -  no other has pools
64  - - - - - - - - - - - x - - - - - - - -  no other has addresses that stay with a name
";

/// The plugins that a row is about.
pub(crate) fn plugins(number: u8) -> Vec<&'static str> {
    let line = line(number);
    NAMES.iter().zip(&line.marks).filter(|(_, mark)| **mark == "x").map(|(name, _)| *name).collect()
}

/// Those that this kernel supports. In the virtual machine (`CNIKIT_RING=vm`), which is slow, those that other kernels may not
/// support: there they have to work. Where CI has a part of the ring's tests (`CNIKIT_RING_PART`), it has half of these, by chance.
#[expect(clippy::disallowed_methods, reason = "whether this is the virtual machine is in the environment")]
pub(crate) fn plugins_here(number: u8) -> Vec<&'static str> {
    let is_vm = std::env::var("CNIKIT_RING").is_ok_and(|ring| ring == "vm");
    let mut here = plugins(number);
    for (plugin, need) in
        [("dummy", Need::DUMMY), ("ipvlan", Need::IPVLAN), ("tap", Need::TUN), ("vlan", Need::VLAN), ("vrf", Need::VRF)]
    {
        let unmet = need.unmet();
        assert!(unmet.is_none() || !is_vm, "the virtual machine's kernel has no {plugin}");
        if unmet.is_some() {
            here.retain(|one| *one != plugin);
        }
    }
    if is_vm {
        here.retain(|plugin| ["dummy", "ipvlan", "vlan", "vrf"].contains(plugin));
        if std::env::var("CNIKIT_RING_PART").is_ok_and(|part| part != "1/1") {
            let half = here.len().div_ceil(2);
            here = campaign::sample(&format!("plugins of row {number}"), here, half);
        }
    }
    here
}

struct Line {
    marks: Vec<&'static str>,
    why: String,
}

fn line(number: u8) -> Line {
    let of_row = |line: &&str| line.split_whitespace().next() == Some(number.to_string().as_str());
    let line = MATRIX.lines().find(of_row).unwrap_or_else(|| panic!("MATRIX has no row {number}"));
    let mut words = line.split_whitespace().skip(1).peekable();
    let mut marks = Vec::new();
    if words.peek() == Some(&"tool") {
        words.next();
        marks = vec!["-"; NAMES.len()];
    }
    while let Some(mark) = words.next_if(|word| ["x", "-"].contains(word)) {
        marks.push(mark);
    }
    Line { marks, why: words.collect::<Vec<_>>().join(" ") }
}

fn top() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn every_plugin_has_a_column_in_the_matrix() {
    let folders = std::fs::read_dir(top().join("plugins")).unwrap();
    let folders: BTreeSet<String> = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let columns: Vec<&str> = MATRIX.lines().nth(1).unwrap().split_whitespace().skip(1).collect();
    for plugin in folders.iter().filter(|folder| !["all", "examples"].contains(&folder.as_str())) {
        assert!(
            columns.contains(&plugin.as_str()) && NAMES.contains(&plugin.as_str()),
            "plugins/{plugin} has no column in MATRIX of tests/tests/adversary/rows.rs: add one, in the order of NAMES in \
             tests/src/lib.rs, with `x` in each row that an adversary could try on it and `-` in the others, and say in \
             tests/src/served.rs how it is called so that it succeeds"
        );
    }
    assert_eq!(columns, NAMES, "the columns of MATRIX are the plugins, in the order of NAMES");
    for row in &ROWS {
        let Line { marks, why } = line(row.number);
        assert_eq!(marks.len(), NAMES.len(), "row {}: a mark for each plugin", row.number);
        assert_eq!(marks.contains(&"-"), !why.is_empty(), "row {}: why for the others not", row.number);
    }
    assert_eq!(MATRIX.lines().filter(|line| !line.is_empty()).count(), 1 + ROWS.len());
}

#[test]
fn every_row_has_its_number_and_every_actor_a_row() {
    let numbers: Vec<u8> = ROWS.iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=64).collect::<Vec<_>>());
    assert!(ROWS.iter().all(|row| !row.by.is_empty() && !row.experiment.is_empty()));
    assert!(ROWS.iter().filter_map(|row| row.cve).all(|name| name.starts_with("CVE-")));
    let actors: BTreeSet<Actor> = ROWS.iter().flat_map(|row| row.by).copied().collect();
    assert_eq!(actors.len(), 10);
}

/// The names of the tests in a file: functions below `#[test]`, and those that a list of tests names.
fn tests_in(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let name_at = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    for below in text.split("#[test]\n").skip(1) {
        if let Some((_, rest)) = below.split_once("fn ") {
            names.insert(name_at(rest));
        }
    }
    names.extend(text.split("test!(").skip(1).map(name_at));
    names
}

/// The file that a test of this name is in, and the function's name.
fn place(test: &str) -> (PathBuf, &str) {
    let tests = top().join("tests/tests");
    let (program, rest) = test.split_once('/').unwrap_or(("adversary", test));
    let (modules, function) = rest.rsplit_once("::").unwrap_or(("main", rest));
    let module = modules.split("::").next().unwrap_or(modules);
    let folder = match program {
        "agent" => top().join("crates/agent/tests/etcd"),
        _ => tests.join(program),
    };
    let file = if folder.is_dir() { folder.join(format!("{module}.rs")) } else { tests.join(format!("{program}.rs")) };
    (file, function)
}

#[test]
fn every_row_is_held_by_tests_that_exist() {
    for row in &ROWS {
        let By(tests) = row.held;
        assert!(!tests.is_empty(), "row {}: no test", row.number);
        for test in tests {
            let (file, function) = place(test);
            let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert!(
                tests_in(&text).contains(function),
                "row {}: {} has no test {function}",
                row.number,
                file.display()
            );
        }
    }
}

/// A test that is in no row would not be in the documentation.
#[test]
fn every_test_is_in_a_row() {
    let named: BTreeSet<(PathBuf, &str)> = ROWS.iter().flat_map(|row| row.held.0).map(|test| place(test)).collect();
    for entry in std::fs::read_dir(top().join("tests/tests/adversary")).unwrap() {
        let file = entry.unwrap().path();
        if ["actor.rs", "rows.rs", "main.rs"].iter().any(|own| file.ends_with(own)) {
            continue;
        }
        for test in tests_in(&std::fs::read_to_string(&file).unwrap()) {
            let is_named = named.iter().any(|(place, function)| *place == file && *function == test);
            assert!(is_named, "{}: {test} is in no row of ROWS", file.display());
        }
    }
}
