//! `stria up --listen`: a file system in one process that other hosts mount over TCP.

use crate::{
    common::{Daemon, Place, Port},
    namespace::{Namespace, refused},
};

/// Starts `up`; also what it says others are to mount.
fn up(namespace: &Namespace, place: &Place, listen: &str) -> (Daemon, String) {
    let line = format!("stria up --dir {} --mount $S/mnt --listen {listen}", place.data("up").display());
    let mut daemon = namespace.daemon("up", false, &line, &place.data("up.log"));
    let said = daemon.wait_for("serving other hosts at");
    assert!(said.contains("copy "), "where the key is: {said}");
    let source = said.split("--key client.key ").nth(1).and_then(|rest| rest.split(' ').next());
    let source = source.unwrap_or_else(|| panic!("no source in '{said}'")).to_owned();
    daemon.wait_for("mounted at");
    namespace.install_key(&place.data("up/mgs/client.key"));
    (daemon, source)
}

#[test]
fn a_second_client_shares_the_files_of_up() {
    let place = Place::new();
    let mut namespace = Namespace::new(&place);
    let (daemon, source) = up(&namespace, &place, "127.0.0.1:0");
    namespace.set("SOURCE", &source);
    namespace.shell("mkdir $S/other && stria mount $SOURCE $S/other").succeed();
    for (line, expected) in [
        ("echo one > $S/mnt/file && cat $S/other/file", "one\n"),
        ("echo two >> $S/other/file && cat $S/mnt/file && stat -c %s $S/mnt/file", "one\ntwo\n8\n"),
        (
            "mkdir $S/other/wide && lfs setstripe -c -1 -S 64K $S/other/wide && touch $S/mnt/wide/file && lfs getstripe -c $S/other/wide/file",
            "4\n",
        ),
        ("head -c 5M /dev/urandom > $S/mnt/wide/file && cmp $S/mnt/wide/file $S/other/wide/file", ""),
        ("mv $S/other/wide/file $S/other/moved && ls $S/mnt", "file\nmoved\nwide\n"),
        ("flock $S/mnt/file flock --nonblock $S/other/file true || echo held", "held\n"),
        ("lfs check all $S/other | grep -c active", "5\n"),
        ("df --output=source $S/mnt $S/other | sort -u | wc -l", "2\n"),
    ] {
        assert_eq!(namespace.shell(line).succeed(), expected, "{line}");
    }
    // At once, not after the time that it waits for a server that is away.
    let line = "mkdir $S/third && sed -E \"s/[0-9a-f]{64}/$(printf %064d 0)/\" /etc/stria/stria.client.key > $S/wrong && \
                chmod 600 $S/wrong && timeout 20 stria mount --key $S/wrong $SOURCE $S/third";
    let foreign = refused(namespace.shell(line));
    assert!(foreign.contains("refused by MGS 127.0.0.1:"), "{foreign}");
    assert!(foreign.contains("MGS and this client have different client keys"), "{foreign}");
    namespace.shell("stria umount $S/other").succeed();
    daemon.stop();
    let refused = refused(namespace.shell("stria mount $SOURCE $S/other"));
    assert!(refused.contains("connection refused; is stria serve running there?"), "{refused}");
    assert!(namespace.shell(&format!("stria fsck --data {}", place.data("up").display())).succeed().contains(" 0 pr"));
}

#[test]
fn a_second_client_waits_for_up_to_come_back() {
    let place = Place::new();
    let mut namespace = Namespace::new(&place);
    let port = Port::reserve();
    let (mut daemon, source) = up(&namespace, &place, &port.address());
    assert_eq!(source, format!("{}:/stria", port.address()));
    namespace.set("SOURCE", &source);
    namespace.shell("mkfifo $S/fifo && mkdir $S/other && stria mount $SOURCE $S/other").succeed();
    for (round, stop) in [Daemon::stop, Daemon::kill].into_iter().enumerate() {
        let line =
            "bash -c 'exec 3> $S/other/kept; echo before >&3; echo open; read -r < $S/fifo; echo after >&3; echo done'";
        let mut writer = namespace.daemon("writer", false, line, &place.data("writer.log"));
        writer.wait_for("open");
        stop(daemon);
        // It writes while nobody serves it.
        namespace.shell("echo go > $S/fifo").succeed();
        daemon = up(&namespace, &place, &port.address()).0;
        writer.wait_for("done");
        assert!(writer.ended().success());
        assert_eq!(namespace.shell("cat $S/mnt/kept").succeed(), "before\nafter\n", "round {round}");
    }
    namespace.shell("stria umount $S/other").succeed();
    daemon.stop();
    assert!(namespace.shell(&format!("stria fsck --data {}", place.data("up").display())).succeed().contains(" 0 pr"));
}
