# Verify the accelerators of SLIPWAY_ACCELERATORS in an image without Slipway; then start the program.
# No $(...), because Kubernetes expands that in a container's command.
# Arguments: the text of libraries.py, the root of /dev and of the libraries ("" for /), the program and its arguments.
libraries=$1 root=$2
shift 2
if [ -z "${SLIPWAY_ACCELERATORS-}" ]; then exec "$@"; fi
kind=${SLIPWAY_ACCELERATORS%%:*} count=${SLIPWAY_ACCELERATORS#*:}
driver=/usr/local/nvidia/lib64

refuse() {
    echo "This machine should have $SLIPWAY_ACCELERATORS, but $1."
    echo "  setting:  SLIPWAY_ACCELERATORS = '$SLIPWAY_ACCELERATORS'"
    echo "  fix:      $2"
    exit 1
} >&2

number() {
    found=`ls -d "$@" 2>/dev/null | wc -l`
}

loads() {
    ldconfig -p 2>/dev/null | grep -q "libcuda\.so\.1" && return
    echo "${LD_LIBRARY_PATH-}:/usr/lib:/usr/lib64:/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib/wsl/lib" |
        tr : "\n" | while read -r folder; do
        if [ -n "$folder" ] && [ -e "$root$folder/libcuda.so.1" ]; then echo found; fi
    done | grep -q found
}

image="pass the accelerators on to the container: --gpus all, or --privileged for TPUs"
if [ "$kind" = tpu ]; then
    number "$root"/dev/accel[0-9]* "$root"/dev/vfio/[0-9]*
    if [ "$found" = 0 ]; then refuse "there is no device file /dev/accelN or /dev/vfio/N" "$image"; fi
    export JAX_PLATFORMS="${JAX_PLATFORMS-tpu,cpu}"
else
    number "$root"/dev/nvidia[0-9]*
    if [ "$found" -gt 0 ] || [ ! -e "$root/dev/kfd" ]; then # otherwise, they are of AMD
        if [ "$found" -lt "$count" ] && [ ! -e "$root/dev/dxg" ]; then # which stands for all of them
            refuse "it has $found device files /dev/nvidiaN" "$image"
        fi
        visible=`echo "${CUDA_VISIBLE_DEVICES-all}" | tr , "\n" | grep -cv -e "^ *$" -e "^ *-1 *$"`
        if [ "${CUDA_VISIBLE_DEVICES-all}" != all ] && [ "$visible" -lt "$count" ]; then
            refuse "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES lists $visible" "unset CUDA_VISIBLE_DEVICES"
        fi
        if ! loads; then
            refuse "the driver's library libcuda.so.1 is not on the loader's path" "add to the image's Dockerfile:\
 ENV LD_LIBRARY_PATH=$driver\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} PATH=\$PATH:/usr/local/nvidia/bin"
        fi
        export JAX_PLATFORMS="${JAX_PLATFORMS-cuda,cpu}"
    fi
fi

case "${1##*/}" in
    python*) python=$1 ;;
    *) python=`command -v python3 || command -v python` ;;
esac
if [ -n "$python" ] && [ "${SLIPWAY_VERIFY_LIBRARIES-}" != 0 ]; then
    seen=`"$python" -c "$libraries" "$kind" "$count"`
    if [ $? = 3 ]; then
        seen=`echo "$seen" | tail -n 1`
        refuse "$seen" "install a build of the library for these accelerators in the image, whose\
 CUDA version the driver supports; for a program with another library: ENV SLIPWAY_VERIFY_LIBRARIES=0"
    fi
fi
exec "$@"
