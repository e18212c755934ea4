/* Sources of names for the static program: files, and name servers, which are in glibc's libc.a. Without this, glibc would
 * load the libraries that /etc/nsswitch.conf names from the host; they are for the host's glibc, and the program would
 * crash (with libnss_systemd of Debian 13: SIGFPE). packaging/binaries.sh links it. */
#include <nss.h>

__attribute__((constructor)) static void use_built_in_sources(void) {
  __nss_configure_lookup("passwd", "files");
  __nss_configure_lookup("group", "files");
  __nss_configure_lookup("initgroups", "files");
  __nss_configure_lookup("hosts", "files dns");
  __nss_configure_lookup("services", "files");
}
