// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * For the tests of host-device: a device on the auxiliary bus, cnikit_auxiliary.port.0, with an Ethernet link, as the subfunction of
 * a network card is one. No hardware that QEMU emulates has such a device. The link drops what it is given, has a permanent address,
 * and like that of hardware it returns to the first namespace when its own ends: it has no rtnl_link_ops.
 */
#include <linux/auxiliary_bus.h>
#include <linux/etherdevice.h>
#include <linux/module.h>

static const u8 permanent_address[ETH_ALEN] = { 0x52, 0x54, 0x00, 0xc0, 0xde, 0x0a };

static netdev_tx_t drop(struct sk_buff *packet, struct net_device *link)
{
	dev_kfree_skb(packet);
	return NETDEV_TX_OK;
}

static const struct net_device_ops link_ops = {
	.ndo_start_xmit = drop,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

static int port_probe(struct auxiliary_device *port, const struct auxiliary_device_id *id)
{
	struct net_device *link = alloc_etherdev(0);
	int error;

	if (!link)
		return -ENOMEM;
	SET_NETDEV_DEV(link, &port->dev);
	link->netdev_ops = &link_ops;
	/* Registered with it, the link has it as its permanent address. */
	eth_hw_addr_set(link, permanent_address);
	error = register_netdev(link);
	if (error)
		free_netdev(link);
	else
		auxiliary_set_drvdata(port, link);
	return error;
}

static void port_remove(struct auxiliary_device *port)
{
	struct net_device *link = auxiliary_get_drvdata(port);

	unregister_netdev(link);
	free_netdev(link);
}

static const struct auxiliary_device_id port_ids[] = {
	{ .name = KBUILD_MODNAME ".port" },
	{}
};

static struct auxiliary_driver port_driver = {
	.probe = port_probe,
	.remove = port_remove,
	.id_table = port_ids,
};

static void port_release(struct device *device)
{
	kfree(to_auxiliary_dev(device));
}

/* The device above the port, and the port. */
static struct device *card;
static struct auxiliary_device *port;

static int __init port_add(void)
{
	int error;

	port = kzalloc(sizeof(*port), GFP_KERNEL);
	if (!port)
		return -ENOMEM;
	port->name = "port";
	port->dev.parent = card;
	port->dev.release = port_release;
	error = auxiliary_device_init(port);
	if (error) {
		kfree(port);
		return error;
	}
	error = auxiliary_device_add(port);
	if (error)
		auxiliary_device_uninit(port);
	return error;
}

static int __init start(void)
{
	int error;

	card = root_device_register(KBUILD_MODNAME);
	if (IS_ERR(card))
		return PTR_ERR(card);
	error = auxiliary_driver_register(&port_driver);
	if (error)
		goto no_driver;
	error = port_add();
	if (error)
		goto no_port;
	return 0;

no_port:
	auxiliary_driver_unregister(&port_driver);
no_driver:
	root_device_unregister(card);
	return error;
}

static void __exit stop(void)
{
	auxiliary_device_delete(port);
	auxiliary_device_uninit(port);
	auxiliary_driver_unregister(&port_driver);
	root_device_unregister(card);
}

module_init(start);
module_exit(stop);
MODULE_DESCRIPTION("A device on the auxiliary bus with an Ethernet link, for tests");
MODULE_LICENSE("Dual MIT/GPL");
