#!/bin/sh
# sshd for mpirun, in the foreground, as root or as any other user:   retina-sshd [PORT [OPTION...]]
# Its host key is made at this start, so that no image holds one. Keys in ~/.ssh/authorized_keys log in, passwords never. StrictModes is
# off because Kubernetes mounts that file as a link into a folder of root's.
set -eu
port=${1:-2222}
[ $# -eq 0 ] || shift
[ "$(id -u)" -ne 0 ] || mkdir -p /run/sshd # without which root's sshd does not start
folder=$(mktemp -d)
ssh-keygen -q -t ed25519 -N '' -f "$folder/host_key"
exec /usr/sbin/sshd -De -f /dev/null -p "$port" -o HostKey="$folder/host_key" -o PidFile=none -o UsePAM=no \
  -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no -o PermitRootLogin=prohibit-password -o StrictModes=no \
  -o DisableForwarding=yes -o MaxAuthTries=3 -o SetEnv="PATH=$PATH" "$@"
