# Runs on every host of the TPU: trains in a container, sends its log and exit code to the bucket, and deletes the TPU
# when the launcher no longer renews its lease, when the time is over, or some time after the container ended. Needs
# systemd, curl, docker and apt-get. The variables are set by `startup.py`.
set -u
METADATA="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
GCSFUSE_VERSION=3.4.4
# Of its package for amd64, as openai/openai-agents-js pins it.
GCSFUSE_SHA256=406945ecc736e8cf0eee92a617fd4a038d138c9c31e48980b99862a5f1f55bb5
WORK=$(mktemp -d) LOG=$WORK/log
sent=0 part='' code='' stopping='' renewed=$(date +%s)
: >"$LOG"

# Google's unit for start-up scripts has KillMode=process: at a shutdown the script is not told, and if it is killed,
# nobody starts it again. A unit of its own is told, before docker stops, and started again.
if [ "${1:-}" != unit ]; then
  # A second one, such as of the script that is run by hand, would replace the container of the first.
  [ "$(systemctl show --property=LoadState --value slipway 2>/dev/null)" != loaded ] || exit 0
  cp "$0" "$WORK/startup" && systemd-run --unit=slipway --collect --property=After=docker.service \
    --property=After=network-online.target --property=KillMode=mixed --property=TimeoutStopSec=30 \
    --property=Restart=on-failure --property=RestartSec=5 bash "$WORK/startup" unit && exit
fi

say() { echo "slipway: $*" >>"$LOG"; }

metadata() { curl -sf --max-time 60 --retry 8 --retry-connrefused -H 'Metadata-Flavor: Google' "$METADATA/$1"; }

field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" | head -n 1; }

token() { metadata service-accounts/default/token | field access_token; }

call() { curl -sS --max-time 60 -H "Authorization: Bearer $(token)" "$@"; }

upload() {
  call --fail -o /dev/null -X POST -H 'Content-Type: text/plain' --data-binary @- \
    "$STORAGE_API/upload/storage/v1/b/$BUCKET/o?uploadType=media&name=$FOLDER/hosts/$1"
}

# Sends the whole lines that were written since the last call; a part that could not be sent is sent again as it was.
send_log() {
  if [ -z "$part" ]; then
    total=$(wc -l <"$LOG")
    [ "$total" -gt "$sent" ] || return 0
    part=$(date +%s%N)
  fi
  sed -n "$((sent + 1)),${total}p" "$LOG" | upload "$TRY-$HOST/$part.log" && sent=$total part=''
}

# Whether this request still holds the lease and the launcher renewed it in time. If the storage does not answer, the
# last known renewal counts.
held() {
  local answer
  answer=$(call -w '\n"status": "%{http_code}"' "$STORAGE_API/storage/v1/b/$BUCKET/o/$LEASE?fields=updated,metadata")
  case $(tail -n 1 <<<"$answer" | field status) in
    200)
      [ "$(field holder <<<"$answer")" = "$NAME" ] || return 1
      renewed=$(date -d "$(field updated <<<"$answer")" +%s)
      ;;
    404) return 1 ;;
  esac
  [ $(($(date +%s) - renewed)) -lt "$LEASE_SECONDS" ]
}

out_of_time() { [ "$SECONDS" -ge "$MAX_SECONDS" ] || [ "$(date +%s)" -ge "$DEADLINE" ]; }

# Ends with the machine.
delete_tpu() {
  say "deleting this TPU: $1"
  timeout 60 docker kill slipway >>"$LOG" 2>&1
  send_log
  while :; do
    call -X DELETE "$TPU_API/v2/projects/$PROJECT/locations/$ZONE/queuedResources/$NAME?force=true"
    sleep "$POLL_SECONDS"
  done
}

install_gcsfuse() {
  local package=$WORK/gcsfuse_${GCSFUSE_VERSION}_amd64.deb
  local releases=https://github.com/GoogleCloudPlatform/gcsfuse/releases/download
  curl -sSfL --retry 8 -o "$package" "$releases/v$GCSFUSE_VERSION/${package##*/}" || return
  echo "$GCSFUSE_SHA256  $package" | sha256sum --check --quiet || return
  # Another apt-get may hold the lock while the machine starts.
  apt-get -o DPkg::Lock::Timeout=600 update && apt-get -o DPkg::Lock::Timeout=600 install -y "$package"
}

again() {
  local try
  for try in {1..10}; do
    "$@" && return
    sleep "$POLL_SECONDS"
  done
  say "failed: $1 $2"
  return "$UNAVAILABLE"
}

log_in() { token | docker login -u oauth2accesstoken --password-stdin "https://${IMAGE%%/*}"; }

train() {
  if ! command -v gcsfuse >/dev/null; then
    say 'installing gcsfuse' && again install_gcsfuse '' || return
  fi
  mkdir -p "$WORK/gcs/$BUCKET"
  again gcsfuse --implicit-dirs -o allow_other --file-mode=666 --dir-mode=777 "$BUCKET" "$WORK/gcs/$BUCKET" || return
  case $IMAGE in *.pkg.dev/* | gcr.io/* | *.gcr.io/*) again log_in '' || return ;; esac
  say "pulling $IMAGE"
  again docker pull --quiet "$IMAGE" || return
  docker rm --force slipway >/dev/null 2>&1 # of a machine that was restarted
  say 'starting the container'
  docker run --rm --name slipway --privileged --net=host -v "$WORK/gcs:/gcs" "${OPTIONS[@]}" "$IMAGE" "${ARGUMENTS[@]}"
}

HOST=$(metadata attributes/agent-worker-number) || HOST=0
# The machine is being preempted: the trainer saves a checkpoint.
trap 'stopping=yes; docker kill --signal=TERM slipway' TERM
held || delete_tpu 'its launcher no longer renews the lease'
{ train; echo $? >"$WORK/code"; } >>"$LOG" 2>&1 &
while :; do
  if [ -z "$code" ] && [ -s "$WORK/code" ]; then
    read -r code <"$WORK/code"
    say "the container ended with exit code $code"
    MAX_SECONDS=$((SECONDS + LEASE_SECONDS < MAX_SECONDS ? SECONDS + LEASE_SECONDS : MAX_SECONDS))
    unreported=yes
  fi
  send_log
  if [ -n "${unreported:-}" ] && [ -z "$part" ] && echo "$code" | upload "$TRY-$HOST.exit"; then unreported=''; fi
  if [ -n "$stopping" ] && [ -n "$code" ] && [ -z "$unreported" ]; then exit 0; fi
  held || delete_tpu 'its launcher no longer renews the lease'
  ! out_of_time || delete_tpu 'its time is over'
  sleep "$POLL_SECONDS" & wait $! # a signal interrupts only the wait
done
