use super::*;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// Set in a process of another user: name of the socket that it tries.
const STRANGER: &str = "TRIHOP_TEST_HANDOVER_STRANGER";

fn name(test: &str) -> String {
    format!("trihop-test-listener-{test}-{}", std::process::id())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn past() -> Instant {
    Instant::now()
}

/// A connection that has sent nothing.
fn connected(name: &str) -> OwnedFd {
    connect(&address(name).unwrap()).unwrap()
}

#[test]
fn bytes_and_descriptors_arrive_together() {
    let name = name("together");
    let listener = DescriptorListener::listen(&name, 8).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    DescriptorListener::send(&name, b"a pipe", &[reader.as_fd(), writer.as_fd()]).unwrap();
    drop((reader, writer));
    let (message, fds, pid) = listener.accept(soon()).unwrap();
    assert_eq!(
        (message.as_slice(), fds.len(), pid),
        (b"a pipe".as_slice(), 2, std::process::id())
    );
    for fd in &fds {
        assert!(
            rustix::io::fcntl_getfd(fd)
                .unwrap()
                .contains(rustix::io::FdFlags::CLOEXEC)
        );
    }
    let [reader, writer] = <[OwnedFd; 2]>::try_from(fds).unwrap();
    std::fs::File::from(writer).write_all(b"through").unwrap();
    let mut text = String::new();
    std::fs::File::from(reader)
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "through");
    assert_eq!(listener.refused(), 0);
}

#[test]
fn a_message_that_follows_its_connection_is_owed_until_it_is_here() {
    let name = name("owed");
    let listener = DescriptorListener::listen(&name, 8).unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    assert!(!listener.is_owed(), "nobody has connected");
    let sender = connected(&name);
    assert!(listener.try_accept().unwrap().is_none());
    assert!(listener.is_owed());
    rustix::io::write(&sender, b"late").unwrap();
    assert_eq!(listener.try_accept().unwrap().unwrap().0, b"late");
    assert!(!listener.is_owed());
}

#[test]
fn the_listener_may_come_later() {
    let name = name("later");
    let sender = {
        let name = name.clone();
        crate::sync::thread::spawn(move || DescriptorListener::send(&name, b"early", &[]))
    };
    let listener = DescriptorListener::listen(&name, 8).unwrap();
    assert_eq!(listener.accept(soon()).unwrap().0, b"early");
    sender.join().unwrap().unwrap();
}

#[test]
fn nobody_there_is_an_error_at_the_deadline() {
    let text = DescriptorListener::send_until(&name("nobody"), b"x", &[], past())
        .unwrap_err()
        .to_string();
    assert!(text.contains("listener-nobody"), "{text}");
    let listener = DescriptorListener::listen(&name("silence"), 1).unwrap();
    let Err(Error::System { source, .. }) = listener.accept(past()) else {
        panic!("nothing was sent")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn a_name_is_taken_once() {
    let name = name("taken");
    let first = DescriptorListener::listen(&name, 1).unwrap();
    assert!(DescriptorListener::listen(&name, 1).is_err());
    drop(first);
    assert!(DescriptorListener::listen(&name, 1).is_ok());
    assert!(DescriptorListener::listen(&"x".repeat(108), 1).is_err());
    assert!(DescriptorListener::listen("", 1).is_err());
}

#[test]
fn silent_and_broken_senders_disturb_nobody() {
    let name = name("silent");
    let listener = DescriptorListener::listen(&name, 8).unwrap();
    let _silent = connected(&name);
    drop(connected(&name));
    let large = connected(&name);
    rustix::net::send(&large, &vec![0; MAX_MESSAGE_BYTES + 1], SendFlags::empty()).unwrap();
    DescriptorListener::send(&name, b"good", &[]).unwrap();
    assert_eq!(listener.accept(soon()).unwrap().0, b"good");
    assert!(listener.accept(past()).is_err());
    assert_eq!(listener.refused(), 2);
}

#[test]
fn the_silent_make_room_for_those_who_speak() {
    let name = name("crowd");
    let listener = DescriptorListener::listen(&name, 8).unwrap();
    let mut silent = Vec::new();
    for _ in 0..MAX_WAITING + 4 {
        silent.push(connected(&name));
        assert!(listener.try_accept().unwrap().is_none());
    }
    DescriptorListener::send(&name, b"good", &[]).unwrap();
    assert_eq!(listener.accept(soon()).unwrap().0, b"good");
    assert!(listener.refused() >= 5, "{}", listener.refused());
    // As one who watches the listener beside other things.
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    while listener.waiting.borrow().len() < MAX_WAITING {
        silent.push(connected(&name));
        assert!(listener.try_accept().unwrap().is_none());
    }
    DescriptorListener::send(&name, b"again", &[]).unwrap();
    let heard = loop {
        assert!(!listener.wait_with(&[reader.as_fd()], soon()).unwrap());
        if let Some(heard) = listener.try_accept().unwrap() {
            break heard;
        }
    };
    assert_eq!(heard.0, b"again");
}

#[test]
fn messages_are_bounded() {
    let name = name("bounded");
    let listener = DescriptorListener::listen(&name, 8).unwrap();
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert!(DescriptorListener::send(&name, b"", &[]).is_err());
    assert!(DescriptorListener::send(&name, &vec![0; MAX_MESSAGE_BYTES + 1], &[]).is_err());
    assert!(DescriptorListener::send(&name, b"x", &[reader.as_fd(); MAX_DESCRIPTORS + 1]).is_err());
    DescriptorListener::send(
        &name,
        &vec![7; MAX_MESSAGE_BYTES],
        &[reader.as_fd(); MAX_DESCRIPTORS],
    )
    .unwrap();
    let (message, fds, _) = listener.accept(soon()).unwrap();
    assert_eq!(
        (message, fds.len()),
        (vec![7; MAX_MESSAGE_BYTES], MAX_DESCRIPTORS)
    );
}

/// So often that process connects beside, more than are refused in a row.
const CROWD: u64 = 2 * MOST_REFUSED;

/// Not a test by itself: what the process of another user runs.
#[test]
fn stranger_process() {
    let Ok(name) = std::env::var(STRANGER) else {
        return;
    };
    let text = DescriptorListener::send(&name, b"intrusion", &[])
        .unwrap_err()
        .to_string();
    assert!(text.contains("its listener is user"), "{text}");
    let taken = DescriptorListener::listen(&name, 1).unwrap_err();
    assert!(taken.is_taken(), "{taken}");
    assert_eq!(DescriptorListener::stranger_with(&name), Some(0));
    rustix::net::send(connected(&name), b"intrusion", SendFlags::empty()).unwrap();
    (0..CROWD).for_each(|_| drop(connected(&name)));
}

#[test]
fn another_user_is_refused_on_both_sides() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start a process of another user");
        return;
    }
    let name = name("stranger");
    let listener = DescriptorListener::listen(&name, 1000).unwrap();
    // A copy that the other user may execute, wherever the build directory lies.
    let folder = tempfile::Builder::new()
        .prefix("trihop-test-")
        .tempdir_in("/tmp")
        .unwrap();
    let binary = folder.path().join("stranger");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    for path in [folder.path(), &binary] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
    }
    let status = Command::new(&binary)
        .args(["--exact", "memory::descriptors::tests::stranger_process"])
        .env(STRANGER, &name)
        .current_dir("/")
        .stdout(Stdio::null())
        .uid(65534)
        .gid(65534)
        .spawn()
        .map(|mut child| crate::watchdog::end_of(&mut child));
    let status = match status {
        Ok(status) => status,
        Err(e) => {
            eprintln!("skipped: no process of another user can be started here: {e}");
            return;
        }
    };
    assert!(
        status.success(),
        "the stranger was not turned away: {status}"
    );
    // Whoever waits for a message meanwhile does not wait until nobody comes any more.
    assert!(listener.try_accept().unwrap().is_none());
    assert!(listener.refused() == MOST_REFUSED && listener.is_owed());
    while listener.is_owed() {
        assert!(listener.try_accept().unwrap().is_none());
    }
    assert_eq!(listener.refused(), 3 + CROWD);
    DescriptorListener::send(&name, b"ours", &[]).unwrap();
    assert_eq!(listener.accept(soon()).unwrap().0, b"ours");
}

#[test]
fn a_listener_that_is_gone_is_an_error_at_once_and_not_at_the_deadline() {
    let name = name("gone");
    drop(DescriptorListener::listen(&name, 1).unwrap());
    // Far enough away for the test's watchdog to be what ends a wait for it.
    let deadline = Instant::now() + Duration::from_secs(86_400);
    let error = DescriptorListener::send_to_listener(&name, b"x", &[], deadline).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn who_waits_for_room_takes_what_others_have_for_it_meanwhile() {
    let name = name("crowded");
    let listener = DescriptorListener::listen(&name, 1).unwrap();
    let address = address(&name).unwrap();
    let crowd: Vec<OwnedFd> = std::iter::from_fn(|| connect(&address).ok())
        .take(64)
        .collect();
    assert!(crowd.len() < 64, "there is always room");
    for sender in &crowd {
        rustix::io::write(sender, b"others").unwrap();
    }
    let mut taken = Vec::new();
    let mut take = || {
        while let Some((bytes, ..)) = listener.try_accept()? {
            taken.push(bytes);
        }
        Ok(())
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    DescriptorListener::send_meanwhile(&name, b"mine", &[], deadline, &mut take).unwrap();
    assert_eq!(taken, vec![b"others"; crowd.len()]);
    assert_eq!(listener.accept(soon()).unwrap().0, b"mine");
}
